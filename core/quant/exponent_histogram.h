// A histogram of magnitudes. It determines exactly what any format of core/tensor/format.h would lose of a tensor at
// any power-of-two scale (format_losses()), whatever format the tensor was in when it was counted.
//
// A power-of-two scale shifts exponents and keeps fractions. So a bin is an exponent and an interval of fractions. The
// intervals begin where rounding to some format (nearest, ties to even) changes its outcome:
//   just above a power of two  half of the smallest subnormal is a tie that goes to 0; anything larger does not;
//   1 - 2^-m                   m mantissa bits: half-way from the largest subnormal to the smallest normal number;
//   1 - 2^-(m+1)               half-way from the largest number to the number that would follow it;
//   above 0.8125               the same for e4m3, whose largest number 448 = 1.75 * 2^8 is even and keeps the tie 464.
// fp32 subnormals count by exponents as without a lower limit, down to 2^-149. Zeros have a bin of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/quant/narrow_format.h"

namespace mantissa {

inline constexpr int kMinExponent = -149, kMaxExponent = 127;  // exponents of finite magnitudes other than 0

// A fraction (23 bits) whose leading `bits` bits are set.
constexpr uint32_t leading_ones(int bits) { return 0x7fffffu & ~(0x7fffffu >> bits); }

// The 23-bit fractions at which the bins of an exponent begin. Omits the first bin, which holds only the power of two.
// m = 1: e2m1, 2: e5m2, 3: e4m3, 7: bf16, 10: fp16 and tf32, 23: fp32.
inline constexpr uint32_t kFractionCuts[] = {1,
                                             leading_ones(1),
                                             leading_ones(2),
                                             0x680001u,
                                             leading_ones(3),
                                             leading_ones(7),
                                             leading_ones(8),
                                             leading_ones(10),
                                             leading_ones(11),
                                             leading_ones(23)};
static_assert(std::is_sorted(std::begin(kFractionCuts), std::end(kFractionCuts)));

inline constexpr int kBinsPerExponent = 1 + static_cast<int>(std::size(kFractionCuts));
inline constexpr int kFiniteBins = (kMaxExponent - kMinExponent + 1) * kBinsPerExponent;  // magnitudes other than 0
inline constexpr int kZeroBin = kFiniteBins, kInfinityBin = kFiniteBins + 1, kNanBin = kFiniteBins + 2;
inline constexpr int kHistogramBins = kFiniteBins + 3;

// A plain record on the tensor's device. Counts and a maximum: the same in every order of accumulation.
struct ExponentHistogram {
  int64_t counts[kHistogramBins] = {};  // finite magnitudes in ascending order, then zeros, Inf, NaN
  uint32_t amax = 0;                    // the largest finite magnitude, as magnitude_bits()
  uint32_t padding = 0;
  bool operator==(const ExponentHistogram&) const = default;
};

// The bin of a fraction within its exponent. Cuts are compile-time constants: a GPU cannot read arrays of the host.
template <size_t... Index>
constexpr int fraction_bin(uint32_t fraction, std::index_sequence<Index...>) {
  return ((fraction >= std::integral_constant<uint32_t, kFractionCuts[Index]>::value ? 1 : 0) + ...);
}
constexpr int fraction_bin(uint32_t fraction) {
  return fraction_bin(fraction, std::make_index_sequence<std::size(kFractionCuts)>());
}

// The bin of a magnitude, as magnitude_bits().
constexpr int histogram_bin(uint32_t magnitude) {
  if (magnitude == 0) return kZeroBin;
  if (!is_finite_magnitude(magnitude)) return magnitude == kInfinityBits ? kInfinityBin : kNanBin;
  const bool is_subnormal = magnitude < 0x00800000u;
  // A subnormal's bits are an integer, its multiple of 2^-149: as a float, that integer is exact and normal.
  const uint32_t normal = is_subnormal ? std::bit_cast<uint32_t>(static_cast<float>(magnitude)) : magnitude;
  const int exponent = static_cast<int>(normal >> 23) - 127 + (is_subnormal ? kMinExponent : 0);
  return (exponent - kMinExponent) * kBinsPerExponent + fraction_bin(normal & 0x7fffffu);
}

// The counts of the exponents from the first to the last in use; empty: all counts are 0.
struct ExponentCounts {
  int first = 0;
  std::vector<int64_t> counts{};
};
ExponentCounts by_exponent(const ExponentHistogram& histogram);

// A compact code, since most bins are empty: the amax (4 bytes, little-endian), then two numbers for each nonempty bin
// in ascending order: how many bins lie between it and the previous one, and its count. Both are LEB128: 7 bits a byte,
// the lowest first, the top bit set in all bytes but a number's last. Counts must not be negative.
std::vector<std::byte> encode_histogram(const ExponentHistogram& histogram);
ExponentHistogram decode_histogram(std::span<const std::byte> code);  // DataError if the bytes are not such a code

// --- the losses of a format for the values in an exponent histogram, if they were multiplied by a power of two and
// rounded to it once (nearest, ties to even). The counts are exact for every Format and every exponent. (A kernel
// multiplies in fp32 before it rounds. That changes nothing for formats with fewer exponent bits than fp32; bf16 and
// tf32 are rounded twice if the product is an fp32 subnormal.)

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
// element ceil(percentile / 100 * elements), from 1, ascending. Zeros count; Inf and NaN are above. The range is that
// of the bin, up to the amax: at_most < 1.5 at_least. 0 if there are no elements. ContractError for another percentile.
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
// It uses the upper end of the percentile's range: at most one power of two below the scale of the percentile itself.
// Returns nothing if the percentile is 0 (nothing to scale) or not finite (more elements than the percentile allows had
// overflowed before they were counted). ContractError for a headroom that is not positive and finite.
std::optional<StaticScale> recommended_scale(const ExponentHistogram& histogram, Format format,
                                             const StaticScaleOptions& options);

}  // namespace mantissa
