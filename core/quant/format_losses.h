// What a format loses of the values that an exponent histogram has counted, were they multiplied by a power of two and
// rounded to it: to nearest, ties to even, once. These are the exact counts for every Format and every exponent. (A
// kernel multiplies in fp32 before it rounds. That changes nothing for formats of fewer exponent bits than fp32; for
// bf16 and tf32 it rounds twice where the product is an fp32 subnormal.)
#pragma once

#include <cstdint>
#include <optional>

#include "core/quant/exponent_histogram.h"
#include "core/tensor/format.h"

namespace mantissa {

// Numbers of elements. Each is in one of them at most; the rest becomes normal numbers.
struct FormatLosses {
  int64_t elements = 0;
  int64_t zeros = 0;        // that were 0 before
  int64_t underflowed = 0;  // become 0: at most half of the smallest subnormal
  int64_t subnormal = 0;    // become subnormal and lose leading bits of their mantissa
  int64_t overflowed = 0;   // round to more than the format's maximum: Inf or NaN, or the maximum with saturation
  int64_t non_finite = 0;   // Inf and NaN before

  // Of all elements; 0 where there are none.
  double share(int64_t count) const {
    return elements == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(elements);
  }
  bool operator==(const FormatLosses&) const = default;
};

// After a multiplication by 2^scale_exponent.
FormatLosses format_losses(const ExponentHistogram& histogram, Format format, int scale_exponent);

// What is known of a magnitude: at_least <= magnitude <= at_most. Inf is the place of everything that is not finite.
struct MagnitudeRange {
  double at_least = 0.0;
  double at_most = 0.0;
};

// The magnitude that `percentile` per cent of the elements do not exceed, 0 <= percentile <= 100: by nearest rank,
// element number ceil(percentile / 100 * elements), from 1, in ascending order. Zeros count, and Inf and NaN are above
// all numbers. The range is the bin's, up to the amax: at_most < 1.5 at_least. Of no elements: 0. ContractError for
// another percentile.
MagnitudeRange magnitude_percentile(const ExponentHistogram& histogram, double percentile);

struct StaticScaleOptions {
  double percentile = 99.99;  // of the elements, to be kept from overflow; 100: all
  double headroom = 2.0;      // alpha: what magnitudes may grow by before they overflow
};

// A scale for a whole run, and what it costs the values that it was made from.
struct StaticScale {
  int exponent = 0;  // the scale is 2^exponent, a normal fp32 number
  FormatLosses losses{};
};

// The scale of Micikevicius et al., Mixed Precision Training, 2018, that takes the largest gradients near the format's
// maximum:
//   2^floor(log2(max / (headroom * percentile(|x|))))
// with the upper end of the percentile's range: at most one power of two below what the percentile itself would give.
// Nothing where the percentile is 0 (there is nothing to scale) or not finite (more than the percentile allows has
// overflowed before it was counted). ContractError for a headroom that is not positive and finite.
std::optional<StaticScale> recommended_scale(const ExponentHistogram& histogram, Format format,
                                             const StaticScaleOptions& options);

}  // namespace mantissa
