// Storing fp32 tiles in tensors: bias, accumulation and one rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu/scratch.h"
#include "core/kernels/kernel_args.h"

namespace mantissa::cpu {

// A bias (n), or null if it is undefined, as fp32 after its rounding to c's dtype: where it lies, or converted into
// `scratch`.
const float* bias_as_fp32(const Tensor& bias, DType c_dtype, Scratch& scratch);

// dst rows at distance `stride` elements = round(t + bias), or dst += t with kAccumulate (dst is then fp32), where t is
// the tile times both factors, one after the other.
struct StoreTileArgs {
  const float* tile;  // (rows, columns), rows at distance tile_stride
  int64_t tile_stride;
  const float* bias;  // (columns), or null for none
  int64_t rows, columns, stride;
  DType to;
  GradientMode mode;
  float factors[2];
  std::byte* dst;
};
void store_tile(const StoreTileArgs& args);

}  // namespace mantissa::cpu
