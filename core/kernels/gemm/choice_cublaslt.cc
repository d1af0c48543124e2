#include "core/kernels/gemm/choice_cublaslt.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/check.h"
#include "core/base/log.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {
namespace {

CublasLt load() {
  const SharedLibrary library(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), {"CUDA_HOME", "CUDA_PATH"},
                              fmt::format("install the CUDA {} libraries or put them on LD_LIBRARY_PATH (tools/bundle "
                                          "--with-cuda)",
                                          CUBLAS_VER_MAJOR));
  CublasLt table;
  MANTISSA_CUBLASLT_FUNCTIONS(MANTISSA_FIND_FUNCTION)
  if (const size_t version = table.version(); version / 10000 != CUBLAS_VER_MAJOR) {
    throw ConfigError(fmt::format("{} has version {}, expected the major version {} that this program was built for",
                                  library.name(), version, CUBLAS_VER_MAJOR));
  }
  return table;
}

cudaDataType_t data_type(DType dtype) {
  if (dtype == DType::kF32) return CUDA_R_32F;
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  if (dtype == DType::kF16) return CUDA_R_16F;
  throw ContractError(fmt::format("[gemm] expected a floating dtype, got {}", dtype));
}

cudaDataType_t operand_type(const GemmKey& key, Format format) {
  if (!is_of_codes(key)) return data_type(key.dtype);
  return format == Format::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

// Always sums in fp32. FAST_TF32 only on request: by default the library does not round fp32 operands.
cublasComputeType_t compute_type(const GemmKey& key) {
  return key.fp32_math == Fp32Math::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// By GemmEpilogue.
constexpr cublasLtEpilogue_t kEpilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                             CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                             CUBLASLT_EPILOGUE_DGELU};

// The layouts of block scales (cublasLtMatmulMatrixScale_t) and their attributes, as numbers: headers before CUDA 12.8
// and 12.9 lack the names. Libraries without these modes are never asked for them (fp8_gemm_support.h).
const auto kScaleModeOfA = static_cast<cublasLtMatmulDescAttributes_t>(31),
           kScaleModeOfB = static_cast<cublasLtMatmulDescAttributes_t>(32);

int32_t scale_mode(BlockScaleLayout layout) {
  if (layout == BlockScaleLayout::kMicroTiles) return 2;        // VEC32_UE8M0
  return layout == BlockScaleLayout::kSquareBlocks128 ? 5 : 4;  // BLK128x128_32F, VEC128_32F
}

// ---- The choice of an algorithm

constexpr int kProposals = 8;

// Milliseconds per run, over `runs` consecutive runs.
float time_runs(const GemmLaunch& launch, const cublasLtMatmulAlgo_t& algorithm, int runs, StreamTimer& timer) {
  const size_t begin = timer.mark();
  for (int run = 0; run < runs; ++run) {
    check_cublaslt(launch.library, launch.run(algorithm), "cublasLtMatmul", launch.key);
  }
  const size_t end = timer.mark();
  return static_cast<float>(timer.milliseconds(begin, end)) / static_cast<float>(runs);
}

float median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TimedChoice measure_fastest(const GemmLaunch& launch, const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
  constexpr int kRounds = 5;
  constexpr float kRoundMs = 0.2f;  // long against an event's resolution of 0.5 us
  synchronize_device();
  // The first run of a kernel loads it. Kernels that the library rejects now are excluded.
  std::vector<size_t> running;
  for (size_t i = 0; i < algorithms.size(); ++i) {
    const cublasStatus_t status = launch.run(algorithms[i]);
    if (status == CUBLAS_STATUS_SUCCESS) {
      running.push_back(i);
    } else if (i + 1 == algorithms.size() && running.empty()) {
      check_cublaslt(launch.library, status, "cublasLtMatmul", launch.key);
    }
  }
  const std::unique_ptr<StreamTimer> timer = make_stream_timer(launch.stream);
  const float once = time_runs(launch, algorithms[running.front()], 1, *timer);
  const int runs = once <= 0 ? 20 : std::clamp(static_cast<int>(std::ceil(kRoundMs / once)), 1, 20);
  // In turns, so that a change of the clock affects all of them.
  std::vector<std::vector<float>> times(running.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < running.size(); ++i) {
      times[i].push_back(time_runs(launch, algorithms[running[i]], runs, *timer));
    }
  }
  std::vector<float> medians;
  for (const std::vector<float>& of_one : times) medians.push_back(median(of_one));
  const size_t fastest = clearly_fastest(medians);
  return {.index = running[fastest], .is_steady = is_steady(times[fastest])};
}

cublasLtMatmulAlgo_t to_library(const GemmAlgorithm& bytes) { return std::bit_cast<cublasLtMatmulAlgo_t>(bytes); }
GemmAlgorithm to_bytes(const cublasLtMatmulAlgo_t& algorithm) { return std::bit_cast<GemmAlgorithm>(algorithm); }

}  // namespace

const CublasLt& cublaslt() {
  static const CublasLt kTable = load();
  return kTable;
}

void check_cublaslt(const CublasLt& library, cublasStatus_t status, const char* call, const GemmKey& key) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(fmt::format("[gemm] {} failed with {} for {}", call, library.status_name(status), describe(key)));
}

template <typename Value>
void GemmDescriptors::set(cublasLtMatmulDescAttributes_t attribute, const Value& value, const char* what) {
  const cublasStatus_t status = library_.set_operation(operation_.get(), attribute, &value, sizeof(value));
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check_cublaslt(library_, status, fmt::format("cublasLtMatmulDescSetAttribute({})", what).c_str(), key_);
}

GemmDescriptors::Owned<cublasLtMatrixLayoutOpaque_t> GemmDescriptors::layout(cudaDataType_t type, int64_t rows,
                                                                             int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check_cublaslt(
      library_,
      library_.create_layout(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
      "cublasLtMatrixLayoutCreate", key_);
  return {made, library_.destroy_layout};
}

GemmDescriptors::GemmDescriptors(const CublasLt& library, const GemmKey& key)
    : library_(library),
      key_(key),
      operation_(nullptr, library.destroy_operation),
      a_(nullptr, library.destroy_layout),
      b_(nullptr, library.destroy_layout),
      d_(nullptr, library.destroy_layout) {
  const bool trans_a = key.trans_a == Transpose::kYes, trans_b = key.trans_b == Transpose::kYes;
  // Column-major rows and columns as stored: our row length first.
  a_ = layout(operand_type(key, key.b_format), trans_b ? key.k : key.n, trans_b ? key.n : key.k, key.b_stride);
  b_ = layout(operand_type(key, key.a_format), trans_a ? key.m : key.k, trans_a ? key.k : key.m, key.a_stride);
  d_ = layout(data_type(key.c_dtype), key.n, key.m, key.c_stride);

  cublasLtMatmulDesc_t made = nullptr;
  check_cublaslt(library_, library_.create_operation(&made, compute_type(key), CUDA_R_32F), "cublasLtMatmulDescCreate",
                 key_);
  operation_.reset(made);
  const int32_t transform_a = trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, transform_b = trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, transform_a, "TRANSA");
  set(CUBLASLT_MATMUL_DESC_TRANSB, transform_b, "TRANSB");
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(kEpilogues[static_cast<size_t>(key.epilogue)]), "EPILOGUE");
  if (is_of_codes(key)) {
    // Adds the units' short sums to fp32 registers at intervals.
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0}, "FAST_ACCUM");
  } else if (key.scaled) {
    set(CUBLASLT_MATMUL_DESC_POINTER_MODE, static_cast<int32_t>(CUBLASLT_POINTER_MODE_DEVICE), "POINTER_MODE");
  }
  if (key.a_blocks && key.b_blocks) {
    set(kScaleModeOfA, scale_mode(*key.b_blocks), "A_SCALE_MODE");
    set(kScaleModeOfB, scale_mode(*key.a_blocks), "B_SCALE_MODE");
  }
  if (uses_bias(key.epilogue)) {
    // 16-bit and fp32 products accept only D's type, and so do those of codes with a 16-bit D (cublasLt.h,
    // CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE).
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(data_type(key.c_dtype)), "BIAS_DATA_TYPE");
  }
  if (uses_aux(key.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{key.n}, "EPILOGUE_AUX_LD");
  }
}

void GemmDescriptors::set_factors(const void* of_a, const void* of_b) {
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b, "A_SCALE_POINTER");
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a, "B_SCALE_POINTER");
}

void GemmDescriptors::set_addresses(const GemmOperands& operands) {
  if (uses_bias(key_.epilogue)) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias, "BIAS_POINTER");
  if (uses_aux(key_.epilogue)) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux, "EPILOGUE_AUX_POINTER");
  if (!is_of_codes(key_)) return;
  if (key_.a_blocks && key_.b_blocks) {
    set_factors(operands.a_block_scales, operands.b_block_scales);
  } else if (key_.scaled) {
    set_factors(operands.scalars, operands.scalars + kInverseScaleStride);
  }
}

cublasStatus_t GemmLaunch::run(const cublasLtMatmulAlgo_t& algorithm) const {
  const float usual[] = {1.0f, key.mode == GradientMode::kAccumulate ? 1.0f : 0.0f};
  const bool on_device = key.scaled && !is_of_codes(key);
  const float* const scalars = on_device ? operands.scalars : usual;  // alpha and beta: with 0, c is not read
  return library.matmul(handle, descriptors.operation(), scalars, operands.b, descriptors.a(), operands.a,
                        descriptors.b(), scalars + 1, operands.c, descriptors.d(), operands.c, descriptors.d(),
                        &algorithm, stream.gemm_workspace(), CudaStream::kGemmWorkspaceBytes, stream.handle());
}

std::vector<cublasLtMatmulAlgo_t> proposed_algorithms(const GemmLaunch& launch) {
  const CublasLt& library = launch.library;
  cublasLtMatmulPreference_t made = nullptr;
  check_cublaslt(library, library.create_preference(&made), "cublasLtMatmulPreferenceCreate", launch.key);
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(library.destroy_preference)> preference(
      made, library.destroy_preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_cublaslt(library, library.set_preference(made, attribute, &value, sizeof(value)),
                   "cublasLtMatmulPreferenceSetAttribute", launch.key);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{CudaStream::kGemmWorkspaceBytes});
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, launch.key.b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, launch.key.a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, launch.key.c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, launch.key.c_alignment);

  cublasLtMatmulHeuristicResult_t results[kProposals] = {};
  int found = 0;
  const GemmDescriptors& of = launch.descriptors;
  const cublasStatus_t status = library.algorithms(launch.handle, of.operation(), of.a(), of.b(), of.d(), of.d(),
                                                   preference.get(), kProposals, results, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_cublaslt(library, status,
                 is_capturing(launch.stream.handle())
                     ? "cublasLtMatmulAlgoGetHeuristic while a graph is captured (run the product once before that)"
                     : "cublasLtMatmulAlgoGetHeuristic",
                 launch.key);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize <= CudaStream::kGemmWorkspaceBytes) {
      algorithms.push_back(results[i].algo);
    }
  }
  return algorithms;
}

bool is_usable(const GemmLaunch& launch, const cublasLtMatmulAlgo_t& algorithm) {
  cublasLtMatmulHeuristicResult_t result{};
  const GemmDescriptors& of = launch.descriptors;
  return launch.library.check_algorithm(launch.handle, of.operation(), of.a(), of.b(), of.d(), of.d(), &algorithm,
                                        &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= CudaStream::kGemmWorkspaceBytes;
}

std::optional<TimedChoice> fastest_algorithm(const GemmLaunch& launch,
                                             const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
  if (launch.key.mode == GradientMode::kWrite) return measure_fastest(launch, algorithms);
  std::optional<TimedChoice> fastest;
  try {
    const auto bytes = static_cast<size_t>(launch.key.m * launch.key.c_stride * size_bytes(launch.key.c_dtype));
    const auto sums = launch.stream.allocate_scratch(bytes, "GEMM measurement");
    set_bytes_async(sums->data(), 0, bytes, launch.stream.handle());
    GemmLaunch elsewhere = launch;
    elsewhere.operands.c = sums->data();
    fastest = measure_fastest(elsewhere, algorithms);
  } catch (const OutOfDeviceMemory&) {
    log_warn("[gemm] no device memory is left to compare algorithms: the library's first choice is taken for {}",
             describe(launch.key));
  }
  launch.stream.synchronize();  // the memory goes back to the device
  return fastest;
}

size_t clearly_fastest(const std::vector<float>& milliseconds) {
  constexpr float kClearly = 0.98f;
  size_t best = 0;
  for (size_t i = 1; i < milliseconds.size(); ++i) {
    if (milliseconds[i] < kClearly * milliseconds[best]) best = i;
  }
  return best;
}

bool is_steady(const std::vector<float>& milliseconds) {
  const auto [shortest, longest] = std::minmax_element(milliseconds.begin(), milliseconds.end());
  return *longest - *shortest <= kSteadySpread * *shortest;
}

GemmDevice::GemmDevice(const CublasLt& library, std::string cache_path, GeluFusion gelu_fusion)
    : library_(library), gelu_fusion_(gelu_fusion), cache_(std::move(cache_path)) {
  if (const cublasStatus_t status = library_.create(&handle_); status != CUBLAS_STATUS_SUCCESS) {
    throw CudaError(fmt::format("[gemm] cublasLtCreate failed with {}", library_.status_name(status)));
  }
}

GemmDevice::~GemmDevice() { library_.destroy(handle_); }

bool GemmDevice::try_multiply(const GemmProblem& problem, CudaStream& stream) {
  const std::lock_guard lock(mutex_);
  Plan& plan = plan_for(problem, stream);
  if (!plan.algorithm) return false;
  plan.descriptors.set_addresses(problem.operands);
  const GemmLaunch launch{library_, handle_, plan.descriptors, problem.key, problem.operands, stream};
  check_cublaslt(library_, launch.run(*plan.algorithm), "cublasLtMatmul", problem.key);
  return true;
}

GemmDevice::Plan& GemmDevice::plan_for(const GemmProblem& problem, CudaStream& stream) {
  const std::pair key(stream.gemm_options().selection, problem.key);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  Plan plan{.descriptors = GemmDescriptors(library_, problem.key), .algorithm = std::nullopt};
  plan.descriptors.set_addresses(problem.operands);
  plan.algorithm = choose({library_, handle_, plan.descriptors, problem.key, problem.operands, stream});
  return plans_.emplace(key, std::move(plan)).first->second;
}

std::optional<cublasLtMatmulAlgo_t> GemmDevice::choose(const GemmLaunch& launch) {
  const bool timed = launch.stream.gemm_options().selection == GemmSelection::kTimed;
  std::optional<GemmAlgorithm> rejected;
  if (timed) {
    if (const std::optional<GemmAlgorithm> kept = cache_.find(to_text(launch.key))) {
      if (is_usable(launch, to_library(*kept))) return to_library(*kept);
      rejected = kept;
    }
  }
  const std::vector<cublasLtMatmulAlgo_t> proposals = proposed_algorithms(launch);
  if (proposals.empty()) return std::nullopt;
  if (!timed || is_capturing(launch.stream.handle())) return proposals.front();
  return choose_by_time(launch, proposals, rejected);
}

cublasLtMatmulAlgo_t GemmDevice::choose_by_time(const GemmLaunch& launch,
                                                const std::vector<cublasLtMatmulAlgo_t>& proposals,
                                                const std::optional<GemmAlgorithm>& rejected) {
  constexpr int kAttempts = 3;
  std::optional<TimedChoice> fastest;
  for (int attempt = 0; attempt < kAttempts && (!fastest || !fastest->is_steady); ++attempt) {
    fastest = fastest_algorithm(launch, proposals);
    if (!fastest) return proposals.front();
  }
  if (!fastest->is_steady) {
    log_debug("[gemm] times scatter by more than {:.0f} %: the library's first choice is taken for {}",
              100 * kSteadySpread, describe(launch.key));
  }
  // Kept in any case: a later run could measure again and choose an algorithm that adds in another order.
  const cublasLtMatmulAlgo_t ours = fastest->is_steady ? proposals[fastest->index] : proposals.front();
  const cublasLtMatmulAlgo_t held = to_library(cache_.record({to_text(launch.key), to_bytes(ours)}, rejected));
  return is_usable(launch, held) ? held : ours;
}

}  // namespace mantissa::cuda
