// Stores fp32 tiles into tensors: factors, bias, accumulation and one rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cpu/memory.h"
#include "core/kernels/kernel_args.h"

namespace mantissa::cpu {

// A bias (n) as fp32, after rounding to c's dtype: in place, or converted into `scratch`. nullptr if it is undefined.
const float* bias_as_fp32(const Tensor& bias, DType c_dtype, Scratch& scratch);

// dst = round(t + bias), or dst += t with kAccumulate (dst is then fp32). t is the tile times factors[0], then times
// factors[1]. Rows of dst are `stride` elements apart.
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
