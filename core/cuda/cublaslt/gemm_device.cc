#include "core/cuda/cublaslt/gemm_device.h"

#include <bit>

#include "core/base/log.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {
namespace {

cublasLtMatmulAlgo_t to_library(const GemmAlgorithm& bytes) { return std::bit_cast<cublasLtMatmulAlgo_t>(bytes); }
GemmAlgorithm to_bytes(const cublasLtMatmulAlgo_t& algorithm) { return std::bit_cast<GemmAlgorithm>(algorithm); }

}  // namespace

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
  std::optional<GemmAlgorithm> refused;
  if (timed) {
    if (const std::optional<GemmAlgorithm> kept = cache_.find(to_text(launch.key))) {
      if (is_usable(launch, to_library(*kept))) return to_library(*kept);
      refused = kept;
    }
  }
  const std::vector<cublasLtMatmulAlgo_t> proposals = proposed_algorithms(launch);
  if (proposals.empty()) return std::nullopt;
  if (!timed || is_capturing(launch.stream.handle())) return proposals.front();
  return choose_by_time(launch, proposals, refused);
}

cublasLtMatmulAlgo_t GemmDevice::choose_by_time(const GemmLaunch& launch,
                                                const std::vector<cublasLtMatmulAlgo_t>& proposals,
                                                const std::optional<GemmAlgorithm>& refused) {
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
  // Whatever it is, it is kept: a later run that measured again could choose another one, which adds in another order.
  const cublasLtMatmulAlgo_t ours = fastest->is_steady ? proposals[fastest->index] : proposals.front();
  const cublasLtMatmulAlgo_t held = to_library(cache_.record({to_text(launch.key), to_bytes(ours)}, refused));
  return is_usable(launch, held) ? held : ours;
}

}  // namespace mantissa::cuda
