// A histogram of magnitudes. It determines exactly what any format of core/tensor/format.h would lose of a tensor at
// any power-of-two scale (format_losses.h), whatever format the tensor was in when it was counted.
//
// A power-of-two scale shifts exponents and keeps fractions. So a bin is an exponent and an interval of fractions. The
// intervals begin where rounding to some format (nearest, ties to even) changes its outcome:
//   just above a power of two  half of the smallest subnormal is a tie that goes to 0; anything larger does not;
//   1 - 2^-m                   m mantissa bits: half-way from the largest subnormal to the smallest normal number;
//   1 - 2^-(m+1)               half-way from the largest number to the one that would follow it;
//   above 0.8125               the same for e4m3, whose largest number 448 = 1.75 * 2^8 is even and keeps the tie 464.
// fp32 subnormals are counted by the exponents that they would have without a lower limit, down to 2^-149. Zeros have a
// bin of their own.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "core/quant/narrow_format.h"

namespace mantissa {

// Exponents of finite magnitudes other than 0.
inline constexpr int kMinExponent = -149, kMaxExponent = 127;

// A fraction (23 bits) whose leading `bits` bits are set.
constexpr uint32_t leading_ones(int bits) { return 0x7fffffu & ~(0x7fffffu >> bits); }

// Where the bins of an exponent begin, as 23-bit fractions. The first bin, which holds only the power of two, is left
// out. m = 1: e2m1, 2: e5m2, 3: e4m3, 7: bf16, 10: fp16 and tf32, 23: fp32.
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

// The bin of a fraction within its exponent. The cuts are compile-time constants because a GPU has no access to an
// array of the host.
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

}  // namespace mantissa
