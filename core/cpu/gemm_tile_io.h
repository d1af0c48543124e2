// Moving tiles between tensors and dense scratch: widening on the way in, bias, accumulation and one rounding on the
// way out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

// dst (rows, columns) dense = src rows at distance `stride` elements.
struct LoadTileArgs {
  const std::byte* src;
  int64_t rows, columns, stride;
  DType from;
  float* dst;
};
void load_tile(const LoadTileArgs& args);

// dst rows at distance `stride` elements = round(tile + bias), or dst += tile with kAccumulate (dst is then fp32).
struct StoreTileArgs {
  const float* tile;  // (rows, columns) dense
  const float* bias;  // (columns), or null for none
  int64_t rows, columns, stride;
  DType to;
  GradientMode mode;
  std::byte* dst;
};
void store_tile(const StoreTileArgs& args);

}  // namespace mantissa::cpu
