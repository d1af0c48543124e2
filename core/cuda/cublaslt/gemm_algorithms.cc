#include "core/cuda/cublaslt/gemm_algorithms.h"

#include <algorithm>
#include <cmath>

#include "core/base/log.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {
namespace {

constexpr int kProposals = 8;

class Preference {
 public:
  Preference(const CublasLt& library, const GemmKey& key) : library_(library), key_(key) {
    check_cublaslt(library_, library_.create_preference(&preference_), "cublasLtMatmulPreferenceCreate", key_);
  }
  ~Preference() { library_.destroy_preference(preference_); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <typename Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    check_cublaslt(library_, library_.set_preference(preference_, attribute, &value, sizeof(value)),
                   "cublasLtMatmulPreferenceSetAttribute", key_);
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  const CublasLt& library_;
  const GemmKey& key_;
  cublasLtMatmulPreference_t preference_ = nullptr;
};

class TimingEvent {
 public:
  TimingEvent() : handle_(create_timing_event()) {}
  ~TimingEvent() { destroy_event(handle_); }
  TimingEvent(const TimingEvent&) = delete;
  TimingEvent& operator=(const TimingEvent&) = delete;
  EventHandle get() const { return handle_; }

 private:
  EventHandle handle_;
};

// Milliseconds of one of `runs` runs in a row.
float time_runs(const GemmLaunch& launch, const cublasLtMatmulAlgo_t& algorithm, int runs, const TimingEvent& begin,
                const TimingEvent& end) {
  const StreamHandle stream = launch.stream.handle();
  record(begin.get(), stream);
  for (int run = 0; run < runs; ++run) {
    check_cublaslt(launch.library, launch.run(algorithm), "cublasLtMatmul", launch.key);
  }
  record(end.get(), stream);
  synchronize(end.get());
  return elapsed_ms(begin.get(), end.get()) / static_cast<float>(runs);
}

float median(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TimedChoice measure_fastest(const GemmLaunch& launch, const std::vector<cublasLtMatmulAlgo_t>& algorithms) {
  constexpr int kRounds = 5;
  constexpr float kRoundMs = 0.2f;  // long against an event's resolution of 0.5 us
  synchronize_device();
  // The first run of a kernel loads it. One that the library refuses after all is out of the choice.
  std::vector<size_t> running;
  for (size_t i = 0; i < algorithms.size(); ++i) {
    const cublasStatus_t status = launch.run(algorithms[i]);
    if (status == CUBLAS_STATUS_SUCCESS) {
      running.push_back(i);
    } else if (i + 1 == algorithms.size() && running.empty()) {
      check_cublaslt(launch.library, status, "cublasLtMatmul", launch.key);
    }
  }
  const TimingEvent begin, end;
  const float once = time_runs(launch, algorithms[running.front()], 1, begin, end);
  const int runs = once <= 0 ? 20 : std::clamp(static_cast<int>(std::ceil(kRoundMs / once)), 1, 20);
  // In turns, so that a change of the clock meets all of them.
  std::vector<std::vector<float>> times(running.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < running.size(); ++i) {
      times[i].push_back(time_runs(launch, algorithms[running[i]], runs, begin, end));
    }
  }
  std::vector<float> medians;
  for (const std::vector<float>& of_one : times) medians.push_back(median(of_one));
  const size_t fastest = clearly_fastest(medians);
  return {.index = running[fastest], .is_steady = is_steady(times[fastest])};
}

}  // namespace

cublasStatus_t GemmLaunch::run(const cublasLtMatmulAlgo_t& algorithm) const {
  const float usual[] = {1.0f, key.mode == GradientMode::kAccumulate ? 1.0f : 0.0f};
  const bool on_device = key.scaled && !is_of_codes(key);
  const float* const scalars = on_device ? operands.scalars : usual;  // alpha and beta: with 0, c is not read
  return library.matmul(handle, descriptors.operation(), scalars, operands.b, descriptors.a(), operands.a,
                        descriptors.b(), scalars + 1, operands.c, descriptors.d(), operands.c, descriptors.d(),
                        &algorithm, stream.gemm_workspace(), CudaStream::kGemmWorkspaceBytes, stream.handle());
}

std::vector<cublasLtMatmulAlgo_t> proposed_algorithms(const GemmLaunch& launch) {
  Preference preference(launch.library, launch.key);
  preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{CudaStream::kGemmWorkspaceBytes});
  preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, launch.key.b_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, launch.key.a_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, launch.key.c_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, launch.key.c_alignment);

  cublasLtMatmulHeuristicResult_t results[kProposals] = {};
  int found = 0;
  const GemmDescriptors& of = launch.descriptors;
  const cublasStatus_t status = launch.library.algorithms(launch.handle, of.operation(), of.a(), of.b(), of.d(), of.d(),
                                                          preference.get(), kProposals, results, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  check_cublaslt(launch.library, status,
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
    log_warn("[gemm] no device memory is left to compare algorithms in: the library's first choice is taken for {}",
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

}  // namespace mantissa::cuda
