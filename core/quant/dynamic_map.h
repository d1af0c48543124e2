// 8-bit codes for the moments of an optimizer: the dynamic maps, of 256 values from -1 to 1 (signed) or 0 to 1
// (unsigned). A block of values shares its largest magnitude, absmax; a code stands for map(code) * absmax.
//
// Each of the seven decades that end at 1, 0.1, ..., 1e-6 is divided into intervals of equal length, whose midpoints
// are the values of the map. The signed map has 64, 32, ..., 1 intervals on either side of 0. The unsigned map has
// twice as many, because the sign bit is free for it. 0 and 1 are added. So a relative error of some per cent holds
// over seven decades; equal steps would lose all values below 1/127 of the largest. The signed map has no -1: a block
// whose largest magnitude is negative keeps -0.993 of it.
//
// A position counts the magnitudes of a map upwards from 0; the last position is that of 1. Thresholds are the fp32
// midpoints between neighbours; the nearest position is the number of thresholds that do not exceed the magnitude.
// Every map value is one rounding of an exact quotient: a table of the map has the same bits as its computation.
//
// Source: Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise Quantization", ICLR 2022, and the
// dynamic tree of Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016. One rule differs: a
// nonzero second moment never gets code 0. With code 0, epsilon alone would divide a nonzero first moment ("zero-point
// problem": Li, Chen, Zhu, "Memory Efficient Optimizers with 4-bit States", NeurIPS 2023). The smallest nonzero code,
// 3.25e-7 of the largest, makes the update smaller instead.
#pragma once

#include <cstdint>

namespace mantissa {

// This many consecutive elements of a parameter, starting at a multiple of it, share an absmax.
inline constexpr int64_t kDynamicBlock = 256;

enum class DynamicMap : uint8_t { kSigned, kUnsigned };

constexpr int last_position(DynamicMap map) { return map == DynamicMap::kSigned ? 128 : 255; }  // the position of 1

// position: in [0, last_position(map)].
constexpr float dynamic_magnitude(DynamicMap map, int position) {
  if (position == 0) return 0.0f;
  if (position == last_position(map)) return 1.0f;
  // Interval k of n in decade i (0: the smallest): 10^(i-6) (0.1 + 0.9 (k + 1/2) / n).
  const int doubled = map == DynamicMap::kUnsigned ? 1 : 0;
  const int counted = position + doubled;  // n + k
  int n = 1, decade = -doubled, fifths = 5;
  while (2 * n <= counted) {
    n *= 2;
    ++decade;
  }
  for (int i = decade; i < 6; ++i) fifths *= 5;
  return static_cast<float>(2 * n + 9 * (2 * (counted - n) + 1)) / static_cast<float>((256 << doubled) * fifths);
}

// The smallest magnitude whose nearest position is `position` + 1. position: in [0, last_position(map)).
constexpr float dynamic_threshold(DynamicMap map, int position) {
  return 0.5f * (dynamic_magnitude(map, position) + dynamic_magnitude(map, position + 1));
}

// The code of a position: itself, or in the signed map two's complement with the value's sign; the bits of -128 mean 1.
constexpr uint8_t dynamic_code(DynamicMap map, int position, bool negative) {
  if (map == DynamicMap::kUnsigned || !negative) return static_cast<uint8_t>(position);
  return static_cast<uint8_t>(position < 128 ? -position : -127);
}

constexpr float dynamic_value(DynamicMap map, uint8_t code) {
  if (map == DynamicMap::kUnsigned || code <= 128) return dynamic_magnitude(map, code);
  return -dynamic_magnitude(map, 256 - code);
}

// Whether the values of a block get codes. If all are 0, or one is NaN or Inf, all codes are 0: the block is 0 or NaN.
constexpr bool has_codes(float absmax) { return absmax > 0.0f && absmax <= 3.40282347e38f; }

// The nearest position of a magnitude in [0, 1]. thresholds (last_position(map)): dynamic_threshold() by position.
constexpr int nearest_position(DynamicMap map, float magnitude, const float* thresholds) {
  int position = 0;
  for (int step = 128; step > 0; step /= 2) {
    const int candidate = position + step;
    if (candidate <= last_position(map) && magnitude >= thresholds[candidate - 1]) position = candidate;
  }
  return position;
}

// The code of a value in a block with this absmax.
constexpr uint8_t encode_dynamic(DynamicMap map, float value, float absmax, const float* thresholds) {
  if (!has_codes(absmax)) return 0;
  const float magnitude = value < 0.0f ? -value : value;
  const int position = nearest_position(map, magnitude / absmax, thresholds);
  const bool lifted = map == DynamicMap::kUnsigned && position == 0 && magnitude > 0.0f;
  return dynamic_code(map, lifted ? 1 : position, value < 0.0f);
}

}  // namespace mantissa
