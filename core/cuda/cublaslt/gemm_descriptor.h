// cuBLASLt's descriptors of a product.
#pragma once

#include <memory>

#include "core/cuda/cublaslt/gemm_library.h"
#include "core/cuda/cublaslt/gemm_problem.h"

namespace mantissa::cuda {

// CudaError naming the call, its status and the product, unless it succeeded.
void check_cublaslt(const CublasLt& library, cublasStatus_t status, const char* call, const GemmKey& key);

// The library computes D = op(A) op(B) on column-major matrices. A row-major matrix is the column-major one of its
// transpose, and c^T = op(b)^T op(a)^T: its A is our b, its B is our a, its D is our c, with its rows our columns, and
// no element moves. The flags go along: b is stored (K, N) when trans_b is kNo, which column-major is N x K and just
// what op(b)^T needs. A bias runs along the rows of D, which are our columns: N values.
class GemmDescriptors {
 public:
  GemmDescriptors(const CublasLt& library, const GemmKey& key);

  cublasLtMatmulDesc_t operation() const { return operation_.get(); }
  cublasLtMatrixLayout_t a() const { return a_.get(); }  // the library's A: our b
  cublasLtMatrixLayout_t b() const { return b_.get(); }  // our a
  cublasLtMatrixLayout_t d() const { return d_.get(); }  // C and D are the same matrix: our c

  // The addresses that are part of the operation; to be set before algorithms are asked for, and before each run.
  void set_addresses(const GemmOperands& operands);

 private:
  template <typename Opaque>
  using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;

  template <typename Value>
  void set(cublasLtMatmulDescAttributes_t attribute, const Value& value, const char* what);
  // What our a and our b are multiplied by.
  void set_factors(const void* of_a, const void* of_b);
  Owned<cublasLtMatrixLayoutOpaque_t> layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride);

  const CublasLt& library_;
  const GemmKey key_;
  Owned<cublasLtMatmulDescOpaque_t> operation_;
  Owned<cublasLtMatrixLayoutOpaque_t> a_, b_, d_;
};

}  // namespace mantissa::cuda
