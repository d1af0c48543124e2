// Products by cuBLASLt on one GPU: the library and its descriptors, and the choice among its kernels. The library is
// opened when it is first needed: the program starts on machines without any CUDA library.
#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda/shared_library.h"
#include "core/cuda/stream.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/cache_cublaslt.h"
#include "core/kernels/gemm/problem_cublaslt.h"

namespace mantissa::cuda {

// The library's functions that are used, and their names in the table.
#define MANTISSA_CUBLASLT_FUNCTIONS(F)                   \
  F(cublasLtCreate, create)                              \
  F(cublasLtDestroy, destroy)                            \
  F(cublasLtGetVersion, version)                         \
  F(cublasLtGetStatusName, status_name)                  \
  F(cublasLtMatmul, matmul)                              \
  F(cublasLtMatmulAlgoGetHeuristic, algorithms)          \
  F(cublasLtMatmulAlgoCheck, check_algorithm)            \
  F(cublasLtMatmulDescCreate, create_operation)          \
  F(cublasLtMatmulDescDestroy, destroy_operation)        \
  F(cublasLtMatmulDescSetAttribute, set_operation)       \
  F(cublasLtMatrixLayoutCreate, create_layout)           \
  F(cublasLtMatrixLayoutDestroy, destroy_layout)         \
  F(cublasLtMatmulPreferenceCreate, create_preference)   \
  F(cublasLtMatmulPreferenceDestroy, destroy_preference) \
  F(cublasLtMatmulPreferenceSetAttribute, set_preference)

struct CublasLt {
  MANTISSA_CUBLASLT_FUNCTIONS(MANTISSA_DECLARE_FUNCTION)
};

// The library of the process; stays open until the process ends. It must have the major version that this program was
// compiled for, because enumerations and structs of other versions may differ. The loader searches its own paths, then
// the lib64 and lib folders of $CUDA_HOME, $CUDA_PATH and /usr/local/cuda. Throws ConfigError if there is none.
const CublasLt& cublaslt();

// Throws CudaError with the call, its status and the product unless the call succeeded.
void check_cublaslt(const CublasLt& library, cublasStatus_t status, const char* call, const GemmKey& key);

// cuBLASLt's descriptors of a product. The library computes D = op(A) op(B) on column-major matrices. A row-major
// matrix is its transpose in column-major order, and c^T = op(b)^T op(a)^T. So the library's A is our b, its B is our
// a, its D is our c, its rows are our columns, and no element moves. The flags stay the same: b is stored (K, N) when
// trans_b is kNo, which is N x K in column-major order, as op(b)^T needs. A bias runs along the rows of D, which are
// our columns: N values.
class GemmDescriptors {
 public:
  GemmDescriptors(const CublasLt& library, const GemmKey& key);

  cublasLtMatmulDesc_t operation() const { return operation_.get(); }
  cublasLtMatrixLayout_t a() const { return a_.get(); }  // the library's A: our b
  cublasLtMatrixLayout_t b() const { return b_.get(); }  // our a
  cublasLtMatrixLayout_t d() const { return d_.get(); }  // C and D are the same matrix: our c

  // Sets the addresses in the operation. Required before algorithms are requested, and before each run.
  void set_addresses(const GemmOperands& operands);

 private:
  template <typename Opaque>
  using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value, const char* what);
  // Sets the factors of our a and our b.
  void set_factors(const void* of_a, const void* of_b);
  Owned<cublasLtMatrixLayoutOpaque_t> layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride);

  const CublasLt& library_;
  const GemmKey key_;
  Owned<cublasLtMatmulDescOpaque_t> operation_;
  Owned<cublasLtMatrixLayoutOpaque_t> a_, b_, d_;
};

// ---- The choice of an algorithm

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

// c = op(a) op(b), with activations, for any operands (multiply_cublaslt.cc). Throws CudaError with the product if the
// library cannot compute it.
void multiply(GemmDevice& device, const GemmArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
