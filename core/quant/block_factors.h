// Factors for the elements of a block before and after they are rounded; QuantizeArgs describes their use.
#pragma once

#include "core/quant/scales.h"
#include "core/quant/tensor_format.h"

namespace mantissa {

struct BlockFactors {
  float before = 1.0f;
  float after = 1.0f;
};

// amax: the block's, as magnitude_bits(). tensor: the tensor's scale, which only kTwoLevel uses. format.scaling must be
// one with blocks.
constexpr BlockFactors block_factors(TensorFormat format, uint32_t amax, float tensor) {
  const float max = narrow_format(format.format).max;
  switch (format.scaling) {
    case Scaling::kBlock: {
      const float scale = block_scale(amax, max);
      return {scale, 1.0f / scale};
    }
    case Scaling::kMicro: {
      const E8M0 scale = microscale(amax, max);
      return {multiplier_of(scale), to_float(scale)};
    }
    case Scaling::kTwoLevel: {
      const float block = two_level_block_scale(amax, tensor);
      return {two_level_multiplier(block, tensor), block};
    }
    case Scaling::kDelayed:
    case Scaling::kCurrent:
      break;
  }
  return {};
}

// The stored scale of a kMicro block: the e8m0 code of BlockFactors::after, which is a power of two from 2^-127 on or
// NaN.
constexpr E8M0 micro_scale_of(float after) {
  return {static_cast<uint8_t>(std::bit_cast<uint32_t>(after) >> 23 & 0xffu)};
}

}  // namespace mantissa
