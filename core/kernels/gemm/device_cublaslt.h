// Products by cuBLASLt on one GPU, and the choice among the library's kernels.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/stream.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/cache_cublaslt.h"
#include "core/kernels/gemm/library_cublaslt.h"

namespace mantissa::cuda {

// A product on a stream.
struct GemmLaunch {
  const CublasLt& library;
  cublasLtHandle_t handle = nullptr;
  const GemmDescriptors& descriptors;  // with the operands' addresses set
  const GemmKey& key;
  GemmOperands operands;
  CudaStream& stream;

  // Queues the product.
  cublasStatus_t run(const cublasLtMatmulAlgo_t& algorithm) const;
};

// The proposals of the library's heuristic, the best guess first; empty if it has none for the product.
//
// Sums that are split over K are combined in fp32 only (reduction scheme COMPUTE_TYPE): partial sums in the output's
// type would be rounded to it more than once.
std::vector<cublasLtMatmulAlgo_t> proposed_algorithms(const GemmLaunch& launch);

// Whether the library accepts an algorithm that was read from disk.
bool is_usable(const GemmLaunch& launch, const cublasLtMatmulAlgo_t& algorithm);

struct TimedChoice {
  size_t index = 0;
  bool is_steady = false;  // see is_steady() below
};

// The fastest of the algorithms on the given operands. With kWrite they write c (and aux), which the following product
// overwrites. With kAccumulate they add to memory of their own; the result is empty if there is no device memory for
// it. Waits for all streams of the device, whose work would slow some of the algorithms.
std::optional<TimedChoice> fastest_algorithm(const GemmLaunch& launch,
                                             const std::vector<cublasLtMatmulAlgo_t>& algorithms);

// The index of the first time that no other beats by more than 2 %, about the scatter of such measurements. A later
// guess must be better than an earlier one.
size_t clearly_fastest(const std::vector<float>& milliseconds);

// Whether repeated times of one algorithm differ by at most kSteadySpread of the shortest. Measurements while others
// use the GPU are not reliable.
constexpr float kSteadySpread = 0.1f;
bool is_steady(const std::vector<float>& milliseconds);

// Whether products use the library's gelu epilogues.
enum class GeluFusion : uint8_t { kNo, kYes };

// The products of one GPU: cuBLASLt's handle, and the descriptors and algorithm of each product met so far. They take
// long to find (a heuristic tens of microseconds, a comparison milliseconds) and are found once.
//
// The choice of an algorithm (GemmSelection):
//   kTimed          the choice in the file; else the fastest of the library's proposals, or the first one if its times
//                   scatter even when repeated. Either is written to the file, so that a later run repeats it. If
//                   nothing can be timed (a graph is being captured, no memory), the first proposal.
//   kDeterministic  the library's first proposal.
// Ranks of one machine share the file, and the first to write a product's line decides for all. Ranks on different
// machines may choose differently. No result relies on equal bits of different ranks' products, because the values that
// ranks must agree on (reduced gradients, updated weights) are computed once and sent.
class GemmDevice {
 public:
  // On the calling thread's GPU. `cache_path`: see GemmCache.
  GemmDevice(const CublasLt& library, std::string cache_path, GeluFusion gelu_fusion = GeluFusion::kYes);
  ~GemmDevice();
  GemmDevice(const GemmDevice&) = delete;
  GemmDevice& operator=(const GemmDevice&) = delete;

  bool fuses_gelu() const { return gelu_fusion_ == GeluFusion::kYes; }
  // Queues the product if the library has an algorithm for it, and returns whether it has. Thread-safe.
  bool try_multiply(const GemmProblem& problem, CudaStream& stream);

 private:
  struct Plan {
    GemmDescriptors descriptors;
    std::optional<cublasLtMatmulAlgo_t> algorithm;  // nullopt: the library has none
  };

  Plan& plan_for(const GemmProblem& problem, CudaStream& stream);
  std::optional<cublasLtMatmulAlgo_t> choose(const GemmLaunch& launch);
  cublasLtMatmulAlgo_t choose_by_time(const GemmLaunch& launch, const std::vector<cublasLtMatmulAlgo_t>& proposals,
                                      const std::optional<GemmAlgorithm>& refused);

  const CublasLt& library_;
  const GeluFusion gelu_fusion_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;  // of all below; held while a product is queued, because its addresses are set in the plan
  GemmCache cache_;
  std::map<std::pair<GemmSelection, GemmKey>, Plan> plans_;
};

// c = op(a) op(b), with activations, for any operands (gemm_multiply.cc). Throws CudaError with the product if the
// library cannot compute it.
void multiply(GemmDevice& device, const GemmArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
