// Scales of low-precision formats, by recipe. A scale multiplies a value before it is rounded; its inverse is stored
// and used after a product. An amax is the largest magnitude of a tensor or a block, as magnitude_bits().
//
// Sources: NVIDIA Transformer Engine's recipes (delayed and current scaling: scale = max / amax / 2^margin; blocks of
// 128: rounded down to a power of two); OCP Microscaling Formats Specification 1.0 and NVIDIA's MXFP8 recipe (e8m0,
// rounded so that nothing saturates); NVIDIA's NVFP4 recipe (two levels). Difference from these: neither a scale nor
// its inverse is subnormal, except e8m0's 2^-127, so that flushing subnormals changes no bit.
#pragma once

#include "core/quant/narrow_format.h"
#include "core/quant/tensor_format.h"

namespace mantissa {

inline constexpr int kMaxScaleExponent = 126;  // scales of tensors and their inverses are within 2^+-126

// The scale of a whole tensor: max / amax / 2^margin, -126 <= margin <= 126. `previous` if amax is 0 or not finite.
constexpr float tensor_scale(uint32_t amax, float max, int margin, float previous) {
  if (amax == 0 || !is_finite_magnitude(amax)) return previous;
  const float quotient = max / std::bit_cast<float>(amax);  // Inf for the smallest subnormals
  const float limit = power_of_two(kMaxScaleExponent);
  const float scale = (quotient < limit ? quotient : limit) * power_of_two(-margin);
  return scale > power_of_two(-kMaxScaleExponent) ? scale : power_of_two(-kMaxScaleExponent);
}

// The largest e for which amax * 2^e <= max. amax is finite and not 0; max is normal. e > -255.
constexpr int headroom_exponent(uint32_t amax, float max) {
  // Both as fraction * 2^exponent with the leading bit of the fraction at 23.
  const uint32_t max_bits = std::bit_cast<uint32_t>(max);
  const int field = static_cast<int>(amax >> 23);
  const int shift = field == 0 ? std::countl_zero(amax) - 8 : 0;
  const uint32_t fraction = field == 0 ? (amax << shift) & 0x7fffffu : amax & 0x7fffffu;
  const int exponent = field == 0 ? 1 - shift : field;
  const int difference = static_cast<int>(max_bits >> 23) - exponent;
  return fraction <= (max_bits & 0x7fffffu) ? difference : difference - 1;
}

// The scale of a block: the largest power of two within 2^+-126 that leaves amax at or below max. 1 if the block is all
// 0. NaN if it holds a value that is not finite: every result of the block is then NaN.
constexpr float block_scale(uint32_t amax, float max) {
  if (amax == 0) return 1.0f;
  if (!is_finite_magnitude(amax)) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = headroom_exponent(amax, max);
  return power_of_two(exponent < kMaxScaleExponent ? exponent : kMaxScaleExponent);
}

// e8m0: the power of two 2^(code - 127) in a byte; 0xff is NaN. It has no zero, no sign and no Inf.
struct E8M0 {
  uint8_t code = 127;
  bool operator==(const E8M0&) const = default;
};
inline constexpr E8M0 kE8M0NaN{0xff};

// Reads the byte of kE8M0NaN: nvcc compiles a reference to a constant of the host, as operator== takes it, to a trap.
constexpr bool is_nan(E8M0 scale) { return scale.code == kE8M0NaN.code; }

// Code 0 stands for 2^-127, which is subnormal in fp32.
constexpr float to_float(E8M0 scale) {
  if (is_nan(scale)) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(scale.code == 0 ? 0x00400000u : static_cast<uint32_t>(scale.code) << 23);
}

// The inverse of a microscaling block's scale, as it is stored: the smallest power of two >= amax / max, so that
// nothing saturates. 2^-127 if the block is all 0, NaN if it holds a non-finite value.
constexpr E8M0 microscale(uint32_t amax, float max) {
  if (amax == 0) return {0};
  if (!is_finite_magnitude(amax)) return kE8M0NaN;
  const int exponent = headroom_exponent(amax, max);
  return {static_cast<uint8_t>(exponent < 127 ? 127 - exponent : 0)};
}

// The factor for the values of a block with this stored scale before they are rounded: the inverse of `scale`.
constexpr float multiplier_of(E8M0 scale) {
  if (is_nan(scale)) return std::numeric_limits<float>::quiet_NaN();
  return to_float(E8M0{static_cast<uint8_t>(254 - scale.code)});
}

// Two levels, for e2m1: an element is code * block / tensor. The block's scale is an e4m3 number; the tensor's scale
// makes that of the largest block 448.
inline constexpr float kTwoLevelMax = 448.0f * 6.0f;

// The scale of the tensor; 1 if amax is 0 or not finite.
constexpr float two_level_tensor_scale(uint32_t amax) { return tensor_scale(amax, kTwoLevelMax, 0, 1.0f); }

// The scale of a block, an e4m3 number: amax * tensor / 6, rounded to nearest. 0 if the block is too small beside the
// tensor's largest; NaN if it holds a value that is not finite.
constexpr float two_level_block_scale(uint32_t amax, float tensor) {
  if (!is_finite_magnitude(amax)) return std::numeric_limits<float>::quiet_NaN();
  return round_to(narrow_format(Format::kE4M3), std::bit_cast<float>(amax) * tensor / 6.0f);
}

// The factor for the values of such a block before they are rounded to e2m1: 0 for a block of scale 0.
constexpr float two_level_multiplier(float block, float tensor) { return block == 0.0f ? 0.0f : tensor / block; }

// --- factors for the elements of a block before and after they are rounded; QuantizeArgs describes their use

struct BlockFactors {
  float before = 1.0f;
  float after = 1.0f;
};

// amax: the block's, as magnitude_bits(). tensor: the tensor's scale, for kTwoLevel. format.scaling must have blocks.
constexpr BlockFactors block_factors(TensorFormat format, uint32_t amax, float tensor) {
  const float max = narrow_format(format.format).max;
  switch (format.scaling) {  // with `if`, ptxas spills registers of a kernel
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

// The stored scale of a kMicro block: the e8m0 code of BlockFactors::after, a power of two from 2^-127 on or NaN.
constexpr E8M0 micro_scale_of(float after) {
  return {static_cast<uint8_t>(std::bit_cast<uint32_t>(after) >> 23 & 0xffu)};
}

// --- delayed scaling
// The scale of a tensor in this step follows from its amaxes in earlier steps, so that rounding needs no pass of its
// own. A non-finite amax belongs to a step that overflowed. It is entered as 0, which counts as no amax: otherwise it
// would determine the scale for as long as it stays in the history.

enum class AmaxChoice : uint8_t { kMax, kMostRecent };

struct DelayedScalingOptions {
  int32_t history = 1024;  // steps
  AmaxChoice choice = AmaxChoice::kMax;
  int32_t margin = 0;  // powers of two left between the amax and the format's maximum
  bool operator==(const DelayedScalingOptions&) const = default;
};

// Enters the amax of step number `step` (from 0), as magnitude_bits(), into `history` (options.history entries, all 0
// at first). Returns the scale for the coming steps: `scale`, the current one, if there is no amax to derive it from.
constexpr float next_delayed_scale(const DelayedScalingOptions& options, uint32_t* history, int64_t step, uint32_t amax,
                                   float max, float scale) {
  const uint32_t entry = is_finite_magnitude(amax) ? amax : 0;
  history[step % options.history] = entry;
  uint32_t chosen = entry;
  if (options.choice == AmaxChoice::kMax) {
    for (int32_t i = 0; i < options.history; ++i) chosen = chosen < history[i] ? history[i] : chosen;
  }
  return tensor_scale(chosen, max, options.margin, scale);
}

}  // namespace mantissa
