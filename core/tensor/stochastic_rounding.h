// Stochastic rounding of fp32 to the 16-bit storage types. A value between two neighbours, lo and hi in magnitude,
// becomes hi with probability (|x| - lo) / (hi - lo): the mean over the random words is the value. Representable values
// and Inf stay as they are, NaN stays NaN as in from_float(), and the sign has no influence.
//
// Source: Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015; Croci et al., "Stochastic
// rounding: implementation, error analysis and applications", Royal Society Open Science, 2022.
//
// The number of leading bits of the word that decide, and the resulting accuracy:
//   bf16             16, as many as are discarded: exact
//   fp16             13, the same: exact
//   fp16, subnormal  31: exact from |x| = 2^-32 on; below, the probability is rounded down to a multiple of 2^-31
// Beyond the largest finite value, hi is the next power of two, and it is Inf: an overflow shows.
//
// Uses only integer arithmetic and exact products, so that every device gives the same bits. The CPU's vector form is
// in core/kernels/optimizer/adamw-inl.h.
#pragma once

#include <bit>
#include <cstdint>

#include "core/tensor/half.h"

namespace mantissa {

// word: 32 uniformly distributed random bits.
template <typename T>
constexpr T round_stochastically(float value, uint32_t word);

template <>
constexpr BFloat16 round_stochastically<BFloat16>(float value, uint32_t word) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + (word >> 16)) >> 16)};
}

template <>
constexpr Float16 round_stochastically<Float16>(float value, uint32_t word) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude < 0x38800000u) {  // below 2^-14, where neighbours are 2^-24 apart
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    const int32_t whole = static_cast<int32_t>(units);
    const float fraction = units - static_cast<float>(whole);
    const bool up = static_cast<int32_t>(word >> 1) < static_cast<int32_t>(fraction * 0x1p31f);
    return {static_cast<uint16_t>(sign | (static_cast<uint32_t>(whole) + (up ? 1u : 0u)))};
  }
  const uint32_t code = (magnitude - 0x38000000u + (word >> 19)) >> 13;
  return {static_cast<uint16_t>(sign | (code < 0x7c00u ? code : 0x7c00u))};
}

}  // namespace mantissa
