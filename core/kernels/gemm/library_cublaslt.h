// cuBLASLt and its descriptors. The library is opened when it is first needed: the program starts on machines without
// any CUDA library.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>

#include "core/cuda/shared_library.h"
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

// The reason that cublaslt() would throw; empty if it would not. Does not throw.
std::string cublaslt_unusable_reason();

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

}  // namespace mantissa::cuda
