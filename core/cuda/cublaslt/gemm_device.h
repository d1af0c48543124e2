// The products of one GPU: cuBLASLt's handle, and for each product met so far its descriptors and algorithm, which take
// long to find (a heuristic tens of microseconds, a comparison milliseconds) and are found once.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/cuda/cublaslt/gemm_algorithms.h"
#include "core/cuda/cublaslt/gemm_cache.h"

namespace mantissa::cuda {

// Whether gelu is an epilogue of products where the library has one.
enum class GeluFusion : uint8_t { kNo, kYes };

// How an algorithm is chosen (GemmSelection):
//   kTimed          the file of choices; else the fastest of the library's proposals, or, if its times scatter even
//                   when taken again, the first of them: either goes into the file, so that a later run repeats it;
//                   else, where nothing can be timed (a graph is being captured, no memory), the first proposal.
//   kDeterministic  the library's first proposal.
// Ranks of one machine share the file, and whoever writes a product's line first decides for all. Ranks on different
// machines may choose differently: no result relies on equal bits of different ranks' products, since what ranks must
// agree on (reduced gradients, updated weights) is computed once and sent.
class GemmDevice {
 public:
  // On the GPU that is the calling thread's. `cache_path`: see GemmCache.
  GemmDevice(const CublasLt& library, std::string cache_path, GeluFusion gelu_fusion = GeluFusion::kYes);
  ~GemmDevice();
  GemmDevice(const GemmDevice&) = delete;
  GemmDevice& operator=(const GemmDevice&) = delete;

  bool fuses_gelu() const { return gelu_fusion_ == GeluFusion::kYes; }
  // Queues the product, if the library has an algorithm for it; whether it had. Thread-safe.
  bool try_multiply(const GemmProblem& problem, CudaStream& stream);

 private:
  struct Plan {
    GemmDescriptors descriptors;
    std::optional<cublasLtMatmulAlgo_t> algorithm;  // none: the library has none
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

}  // namespace mantissa::cuda
