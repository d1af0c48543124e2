// Counts updates that are too small for the format of the weights: rounded to nearest, w + dw is w again if |dw| is
// less than half of the distance between w and its neighbours, ulp(w) / 2.
#pragma once

#include <cstdint>
#include <iterator>

#include "core/quant/narrow_format.h"

namespace mantissa {

// The formats that weights are stored in.
inline constexpr Format kStagnationFormats[] = {Format::kF32, Format::kBF16, Format::kF16};
inline constexpr int kStagnationFormatCount = static_cast<int>(std::size(kStagnationFormats));

// A plain record on the weights' device. Only counts: the same in every order of accumulation.
struct UpdateStagnation {
  int64_t elements = 0;
  int64_t zero = 0;                               // dw = 0
  int64_t non_finite = 0;                         // w or dw: neither zero nor stagnant
  int64_t stagnant[kStagnationFormatCount] = {};  // |dw| < ulp(w) / 2, dw = 0 included
  bool operator==(const UpdateStagnation&) const = default;
};

// The least normal number and the distance from 1 to the next number of a format, exact in fp32.
struct Spacing {
  float min_normal;
  float epsilon;
};

constexpr Spacing spacing_of(Format format) {
  switch (format) {
    case Format::kF32:
      return {0x1p-126f, 0x1p-23f};
    case Format::kBF16:
      return {0x1p-126f, 0x1p-7f};
    case Format::kF16:
      return {0x1p-14f, 0x1p-10f};
    default:
      return {};
  }
}

// ulp(w): the distance between numbers of the format in the binade of w, which need not be one of them, or between its
// subnormals if w is below the normal range; as if the format had no largest number. 0 <= magnitude = |w| < Inf. Exact,
// 2^-149 or more.
constexpr float ulp_of(const Spacing& spacing, float magnitude) {
  const float at_least = magnitude < spacing.min_normal ? spacing.min_normal : magnitude;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(at_least) & kInfinityBits) * spacing.epsilon;
}

// |dw| < ulp(w) / 2, both finite. Compares 2 |dw|, since half of fp32's smallest ulp is not an fp32 number. If 2 |dw|
// is Inf, it is not less than any ulp.
constexpr bool is_stagnant(const Spacing& spacing, float weight, float delta) {
  const float magnitude = std::bit_cast<float>(magnitude_bits(weight));
  return 2.0f * std::bit_cast<float>(magnitude_bits(delta)) < ulp_of(spacing, magnitude);
}

}  // namespace mantissa
