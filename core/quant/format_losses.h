// The losses of a format for the values in an exponent histogram, if they were multiplied by a power of two and rounded
// to it once (nearest, ties to even). The counts are exact for every Format and every exponent. (A kernel multiplies in
// fp32 before it rounds. That changes nothing for formats with fewer exponent bits than fp32; bf16 and tf32 are rounded
// twice if the product is an fp32 subnormal.)
#pragma once

#include <cstdint>
#include <optional>

#include "core/quant/exponent_histogram.h"
#include "core/tensor/format.h"

namespace mantissa {

// Numbers of elements. Each element is in at most one of the counts; the rest become normal numbers.
struct FormatLosses {
  int64_t elements = 0;
  int64_t zeros = 0;        // were 0 before
  int64_t underflowed = 0;  // become 0: at most half of the smallest subnormal
  int64_t subnormal = 0;    // become subnormal and lose leading bits of their mantissa
  int64_t overflowed = 0;   // round to more than the format's maximum: Inf or NaN, or the maximum with saturation
  int64_t non_finite = 0;   // were Inf or NaN before

  // `count` as a share of all elements; 0 if there are none.
  double share(int64_t count) const {
    return elements == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(elements);
  }
  bool operator==(const FormatLosses&) const = default;
};

// The losses after a multiplication by 2^scale_exponent.
FormatLosses format_losses(const ExponentHistogram& histogram, Format format, int scale_exponent);

// Bounds of a magnitude: at_least <= magnitude <= at_most. Inf stands for everything that is not finite.
struct MagnitudeRange {
  double at_least = 0.0;
  double at_most = 0.0;
};

// The magnitude that `percentile` per cent of the elements do not exceed, 0 <= percentile <= 100. By nearest rank:
// element number ceil(percentile / 100 * elements), from 1, in ascending order. Zeros count; Inf and NaN are above all
// numbers. The range is that of the bin, up to the amax: at_most < 1.5 at_least. 0 if there are no elements.
// ContractError for another percentile.
MagnitudeRange magnitude_percentile(const ExponentHistogram& histogram, double percentile);

struct StaticScaleOptions {
  double percentile = 99.99;  // per cent of the elements to keep from overflow; 100: all
  double headroom = 2.0;      // alpha: factor by which magnitudes may grow before they overflow
};

// A scale for a whole run, and its losses for the values that it was derived from.
struct StaticScale {
  int exponent = 0;  // the scale is 2^exponent, a normal fp32 number
  FormatLosses losses{};
};

// The scale of Micikevicius et al., Mixed Precision Training, 2018, which puts the largest gradients near the format's
// maximum:
//   2^floor(log2(max / (headroom * percentile(|x|))))
// It uses the upper end of the percentile's range: at most one power of two below what the percentile itself would
// give. Returns nothing if the percentile is 0 (nothing to scale) or not finite (more elements than the percentile
// allows had overflowed before they were counted). ContractError for a headroom that is not positive and finite.
std::optional<StaticScale> recommended_scale(const ExponentHistogram& histogram, Format format,
                                             const StaticScaleOptions& options);

}  // namespace mantissa
