// 16-bit storage types and their exact scalar conversions (round to nearest, ties to even).
//
// These are storage types: arithmetic is done in fp32. Bulk conversion is Backend::cast.
#pragma once

#include <bit>
#include <cstdint>

namespace mantissa {

struct BFloat16 {
  uint16_t bits = 0;
  bool operator==(const BFloat16&) const = default;
};

struct Float16 {
  uint16_t bits = 0;
  bool operator==(const Float16&) const = default;
};

inline float to_float(float value) { return value; }

inline float to_float(double value) { return static_cast<float>(value); }

inline float to_float(BFloat16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

inline float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal or zero: exact in fp32
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

template <typename T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
  return value;
}

template <>
inline double from_float<double>(float value) {
  return static_cast<double>(value);
}

template <>
inline BFloat16 from_float<BFloat16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: keep it one (quiet), keep its sign
    return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

template <>
inline Float16 from_float<Float16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // >= 65520 rounds to Inf
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 aligns the last bit at 2^-24 and rounds
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

// --- stochastic rounding
// A value between two neighbours, lo and hi in magnitude,
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
