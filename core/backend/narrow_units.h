// Products of 8-bit operands: what a device multiplies by units of its own, from codes. All else is emulated, as
// QuantizeArgs says: the numbers that the codes stand for are multiplied in a wider dtype. Device-free.
#pragma once

#include <cstdint>

#include "core/quant/tensor_format.h"
#include "core/tensor/dtype.h"

namespace mantissa {

enum class NarrowUnits : uint8_t {
  kNone,
  kTensorScaled,  // e4m3 and e5m2 with one scale a tensor
};

// Sizes of matrices that such units take are multiples of this.
inline constexpr int64_t kNarrowMultiple = 16;

// c (M, N) = a (M, K) * b (N, K)^T [+ bias], see GemmArgs.
struct NarrowProduct {
  TensorFormat a{}, b{};
  int64_t m = 0, n = 0, k = 0;
  DType c = DType::kBF16;
  bool has_bias = false;
};

// Whether the operand's scales are of a kind that the units take.
constexpr bool takes(NarrowUnits units, Scaling scaling) {
  return units == NarrowUnits::kTensorScaled && block_length(scaling) == 0;
}

// Whether the units multiply this. The limits are cuBLASLt's: no product of two e5m2 matrices, no bias of fp32.
constexpr bool multiplies(NarrowUnits units, const NarrowProduct& product) {
  const bool both_e5m2 = product.a.format == Format::kE5M2 && product.b.format == Format::kE5M2;
  const bool whole =
      product.m % kNarrowMultiple == 0 && product.n % kNarrowMultiple == 0 && product.k % kNarrowMultiple == 0;
  return takes(units, product.a.scaling) && takes(units, product.b.scaling) && !both_e5m2 && whole &&
         !(product.has_bias && product.c == DType::kF32);
}

}  // namespace mantissa
