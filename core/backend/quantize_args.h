// Arguments of the kernels that round matrices to low-precision formats. As in kernel_args.h, float means fp32, bf16 or
// fp16.
#pragma once

#include <cstdint>

#include "core/quant/tensor_format.h"
#include "core/tensor/tensor.h"

namespace mantissa {

// What one pass over a matrix finds before it rounds. A plain record on the matrix's device.
struct QuantizeRecord {
  int64_t non_finite = 0;  // NaN and Inf
  uint32_t amax = 0;       // magnitude_bits()
  uint32_t padding = 0;
  bool operator==(const QuantizeRecord&) const = default;
};

// Raises record.amax to the largest magnitude in x (float, any shape), and adds the number of its NaN and Inf.
struct AmaxArgs {
  Tensor x{};
  Tensor record{};  // bytes of one QuantizeRecord
};

// How the values that share a scale lie in a matrix. A product needs blocks along the dimension that it sums over.
enum class BlockAxis : uint8_t {
  kColumns,  // 1 x B: within a row
  kRows,     // B x 1
  kBoth,     // B x B
};

// dst = what a product of matrices in `format` multiplies, as numbers: of the code q of each element of src (R, C)
// float,
//   kDelayed, kCurrent   dst = q, and the product is to be divided by *scale; q = round(src * *scale)
//   kBlock, kMicro       dst = q / s, s being the block's scale, a power of two; q = round(src * s)
//   kTwoLevel            dst = q * b, and the product is to be divided by *scale; b is the block's scale in e4m3,
//                        q = round(src * (*scale / b))
// dst (R, C) bf16 holds each exactly, but for magnitudes below 2^-126 (kMicro: blocks of amax below some 2^-108), which
// are rounded to bf16. Blocks at the end may be shorter. Rounds to nearest, ties to even; what is beyond the range of
// the format becomes its maximum; NaN and Inf stay visible as core/quant/narrow_format.h says, in their whole block
// where blocks have scales.
// scale: (1) fp32, from core/quant/scales.h; undefined for kBlock and kMicro. record: as in AmaxArgs, of src;
// undefined for none.
struct QuantizeArgs {
  Tensor src{}, dst{};
  TensorFormat format{};
  BlockAxis axis = BlockAxis::kColumns;
  Tensor scale{}, record{};
};

}  // namespace mantissa
