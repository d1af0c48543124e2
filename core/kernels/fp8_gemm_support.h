// The 8-bit matrix products that a device runs natively, from codes. All others are emulated as QuantizeArgs says: the
// values of the codes are multiplied in a wider dtype. Device-free.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/quant/tensor_format.h"
#include "core/tensor/dtype.h"

namespace mantissa {

// Bits: a device that supports block scales supports tensor scales as well.
enum class Fp8GemmSupport : uint8_t {
  kNone = 0,
  kTensorScaled = 1,  // e4m3 and e5m2 with one scale a tensor
  kBlockScaled = 3,   // and in blocks of 128, or of 128 x 128
  kMicroScaled = 5,   // and in blocks of 32
  kAll = 7,
};

// The products of cuBLASLt on a GPU of this compute capability. Version 120901 is cuBLASLt 12.9.1. The table of scaling
// modes in its documentation ("Narrow Precision Data Types Usage") has tensor scales from 8.9 on, blocks of 128 for 9.0
// only, and blocks of 32 from 10.0 on. The library has these since 12.9 and 12.8. Compute capability 11.0 and 12.x are
// excluded because they are untested, and a product that the library rejects ends a run.
constexpr Fp8GemmSupport cublaslt_fp8_gemm_support(int major, int minor, size_t library_version) {
  if (major == 9 && minor == 0 && library_version >= 120900) return Fp8GemmSupport::kBlockScaled;
  if (major == 10 && library_version >= 120800) return Fp8GemmSupport::kMicroScaled;
  return major * 10 + minor >= 89 ? Fp8GemmSupport::kTensorScaled : Fp8GemmSupport::kNone;
}

// M, N and K are multiples of this.
inline constexpr int64_t kFp8GemmMultiple = 16;

// c (M, N) = a (M, K) * b (N, K)^T [+ bias], see GemmArgs.
struct Fp8Gemm {
  TensorFormat a{}, b{};
  int64_t m = 0, n = 0, k = 0;
  DType c = DType::kBF16;
  bool has_bias = false;
};

// Whether operands may have scales of this kind.
constexpr bool takes(Fp8GemmSupport support, Scaling scaling) {
  const auto wanted = static_cast<int>(scaling == Scaling::kBlock   ? Fp8GemmSupport::kBlockScaled
                                       : scaling == Scaling::kMicro ? Fp8GemmSupport::kMicroScaled
                                                                    : Fp8GemmSupport::kTensorScaled);
  return scaling != Scaling::kTwoLevel && (static_cast<int>(support) & wanted) == wanted;
}

// Whether the device runs this product. The limits are cuBLASLt's (documentation of cublasLtMatmul() and of narrow
// precisions): at most one operand in e5m2, no fp32 bias, and whole blocks of equal length on both sides. It also lacks
// products of square blocks with square blocks, but only weights have those, and no product multiplies two weights.
constexpr bool multiplies(Fp8GemmSupport support, const Fp8Gemm& product) {
  const bool both_e5m2 = product.a.format == Format::kE5M2 && product.b.format == Format::kE5M2;
  const bool whole =
      product.m % kFp8GemmMultiple == 0 && product.n % kFp8GemmMultiple == 0 && product.k % kFp8GemmMultiple == 0;
  const int64_t block = block_length(product.a.scaling);
  const bool same_blocks = block == block_length(product.b.scaling) && (block == 0 || product.k % block == 0);
  return takes(support, product.a.scaling) && takes(support, product.b.scaling) && same_blocks && !both_e5m2 && whole &&
         !(product.has_bias && product.c == DType::kF32);
}

}  // namespace mantissa
