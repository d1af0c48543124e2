// A histogram of magnitudes from which it can be told exactly what any format of core/tensor/format.h would lose of a
// tensor at any power-of-two scale (format_losses.h), whatever format the tensor was in when it was counted.
//
// A power-of-two scale moves exponents and leaves fractions as they are. So a bin is an exponent and an interval of
// fractions, and the intervals begin where a rounding to nearest, ties to even, of some format changes its outcome:
//   just above a power of two  half of the smallest subnormal is a tie that goes to 0, what is larger does not;
//   1 - 2^-m                   of m mantissa bits: half-way from the largest subnormal to the smallest normal number;
//   1 - 2^-(m+1)               half-way from the largest number to the one that would follow it;
//   above 0.8125               the same for e4m3, whose largest number 448 = 1.75 * 2^8 is even and keeps the tie 464.
// fp32's subnormals are counted by the exponents that they would have if that had no lower limit, 2^-149 being the
// smallest: zeros have a bin of their own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "core/quant/narrow_format.h"

namespace mantissa {

// Of magnitudes that are neither 0 nor Inf nor NaN.
inline constexpr int kMinExponent = -149, kMaxExponent = 127;

// The leading `bits` bits of the 23 of a fraction.
constexpr uint32_t leading_ones(int bits) { return 0x7fffffu & ~(0x7fffffu >> bits); }

// Where the bins of an exponent begin, the first one, which holds the power of two alone, left out; as 23-bit
// fractions. m = 1: e2m1, 2: e5m2, 3: e4m3, 7: bf16, 10: fp16 and tf32, 23: fp32.
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
inline constexpr int kFiniteBins = (kMaxExponent - kMinExponent + 1) * kBinsPerExponent;  // not 0
inline constexpr int kZeroBin = kFiniteBins, kInfinityBin = kFiniteBins + 1, kNanBin = kFiniteBins + 2;
inline constexpr int kHistogramBins = kFiniteBins + 3;

// A plain record on the tensor's device. Sums of counts and maxima: the same in every order.
struct ExponentHistogram {
  int64_t counts[kHistogramBins] = {};  // finite magnitudes in ascending order, then zeros, Inf, NaN
  uint32_t amax = 0;                    // the largest finite magnitude, as magnitude_bits()
  uint32_t padding = 0;
  bool operator==(const ExponentHistogram&) const = default;
};

// Which bin of its exponent a fraction belongs to. The cuts are constants of the code: a GPU has no array of the
// host's.
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
  // The integer in a subnormal's bits is its multiple of 2^-149: as a float it is exact and normal.
  const uint32_t normal = is_subnormal ? std::bit_cast<uint32_t>(static_cast<float>(magnitude)) : magnitude;
  const int exponent = static_cast<int>(normal >> 23) - 127 + (is_subnormal ? kMinExponent : 0);
  return (exponent - kMinExponent) * kBinsPerExponent + fraction_bin(normal & 0x7fffffu);
}

}  // namespace mantissa
