#include "core/quant/exponent_histogram.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr int kBitsPerByte = 7;

void put(uint64_t value, std::vector<std::byte>& to) {
  for (; value >= 0x80; value >>= kBitsPerByte) to.push_back(static_cast<std::byte>((value & 0x7f) | 0x80));
  to.push_back(static_cast<std::byte>(value));
}

[[noreturn]] void refuse(const char* what) {
  throw DataError(
      fmt::format("the code of an exponent histogram {}: the data are damaged, or were made by another "
                  "version of this program",
                  what));
}

uint64_t take(std::span<const std::byte>& from) {
  uint64_t value = 0;
  for (int shift = 0; shift < 63; shift += kBitsPerByte) {
    if (from.empty()) refuse("ends within a number");
    const auto byte = static_cast<uint64_t>(from.front());
    from = from.subspan(1);
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  refuse("has a number of more than 63 bits");
}

// A magnitude at which rounding changes its outcome: 2^exponent * (1 + fraction / 2^23).
struct Threshold {
  int exponent;
  uint32_t fraction;
};

// The bin that begins at a threshold of values times 2^scale_exponent; beyond exponents: the first, or past the last.
int bin_from(const Threshold& threshold, int scale_exponent) {
  const int exponent = threshold.exponent - scale_exponent;
  if (exponent < kMinExponent) return 0;
  if (exponent > kMaxExponent) return kFiniteBins;
  const int bin = fraction_bin(threshold.fraction);
  MANTISSA_CHECK(threshold.fraction == 0 || bin != fraction_bin(threshold.fraction - 1),
                 "[format_losses] no bin of a histogram begins at the fraction {:#x}: a format needs it in "
                 "kFractionCuts",
                 threshold.fraction);
  return (exponent - kMinExponent) * kBinsPerExponent + bin;
}

int64_t sum(const ExponentHistogram& histogram, int begin, int end) {
  return std::accumulate(histogram.counts + begin, histogram.counts + end, int64_t{0});
}

// The smallest magnitude that does not become 0: half of the smallest subnormal is a tie that does.
Threshold least_nonzero(const FormatInfo& format) { return {std::ilogb(format.min_subnormal) - 1, 1}; }

// The smallest magnitude that becomes a normal number: the tie between the largest subnormal and it, which is even.
Threshold least_normal(const FormatInfo& format) {
  return {std::ilogb(format.min_normal) - 1, leading_ones(format.mantissa_bits)};
}

// The smallest magnitude that becomes more than the maximum: the tie if the maximum is odd, else the next one above it.
Threshold least_overflow(const FormatInfo& format) {
  const int exponent = std::ilogb(format.max);
  const auto fraction = static_cast<uint32_t>(std::ldexp(format.max, 23 - exponent)) & 0x7fffffu;
  const uint32_t last_place = 1u << (23 - format.mantissa_bits);
  const bool is_odd = (fraction & last_place) != 0;
  // fp32 itself has nothing between its maximum and the next power of two.
  const uint32_t tie = last_place == 1 ? fraction + 1 : fraction + last_place / 2 + (is_odd ? 0 : 1);
  return {exponent + static_cast<int>(tie >> 23), tie & 0x7fffffu};
}

double at_fraction(int exponent, uint32_t fraction) {
  return std::ldexp(1.0 + static_cast<double>(fraction) * 0x1p-23, exponent);
}

MagnitudeRange range_of(int bin) {
  const int exponent = kMinExponent + bin / kBinsPerExponent, within = bin % kBinsPerExponent;
  const uint32_t first = within == 0 ? 0 : kFractionCuts[within - 1];
  const uint32_t next = within == kBinsPerExponent - 1 ? 0x800000u : kFractionCuts[within];
  return {at_fraction(exponent, first), at_fraction(exponent, next - 1)};
}

// ceil(percentile * elements / 100). A decimal such as 99.9 is not a double: its nearest double, the product and the
// quotient are each off by at most half an ulp. So a result within 2 ulps of a whole number is taken as that number.
int64_t nearest_rank(double percentile, int64_t elements) {
  const double position = percentile * static_cast<double>(elements) / 100.0, whole = std::nearbyint(position);
  const double error = 2.0 * std::numeric_limits<double>::epsilon() * position;
  return static_cast<int64_t>(std::fabs(position - whole) <= error ? whole : std::ceil(position));
}

}  // namespace

ExponentCounts by_exponent(const ExponentHistogram& histogram) {
  ExponentCounts found;
  size_t used = 0;
  for (int exponent = kMinExponent; exponent <= kMaxExponent; ++exponent) {
    const int64_t* const bins = histogram.counts + (exponent - kMinExponent) * kBinsPerExponent;
    const int64_t count = std::accumulate(bins, bins + kBinsPerExponent, int64_t{0});
    if (found.counts.empty() && count == 0) continue;
    if (found.counts.empty()) found.first = exponent;
    found.counts.push_back(count);
    if (count > 0) used = found.counts.size();
  }
  found.counts.resize(used);
  return found;
}

std::vector<std::byte> encode_histogram(const ExponentHistogram& histogram) {
  std::vector<std::byte> code(sizeof(histogram.amax));
  std::memcpy(code.data(), &histogram.amax, sizeof(histogram.amax));
  int next = 0;
  for (int bin = 0; bin < kHistogramBins; ++bin) {
    if (histogram.counts[bin] == 0) continue;
    put(static_cast<uint64_t>(bin - next), code);
    put(static_cast<uint64_t>(histogram.counts[bin]), code);
    next = bin + 1;
  }
  return code;
}

ExponentHistogram decode_histogram(std::span<const std::byte> code) {
  ExponentHistogram histogram;
  if (code.size() < sizeof(histogram.amax)) refuse("is shorter than an amax");
  std::memcpy(&histogram.amax, code.data(), sizeof(histogram.amax));
  code = code.subspan(sizeof(histogram.amax));
  uint64_t next = 0;
  while (!code.empty()) {
    const uint64_t bin = next + take(code);
    if (bin >= static_cast<uint64_t>(kHistogramBins)) refuse("has more bins than there are");
    histogram.counts[bin] = static_cast<int64_t>(take(code));
    next = bin + 1;
  }
  return histogram;
}

FormatLosses format_losses(const ExponentHistogram& histogram, Format format, int scale_exponent) {
  const FormatInfo& f = info(format);
  const int nonzero = bin_from(least_nonzero(f), scale_exponent), normal = bin_from(least_normal(f), scale_exponent),
            overflow = bin_from(least_overflow(f), scale_exponent);
  return {.elements = sum(histogram, 0, kHistogramBins),
          .zeros = histogram.counts[kZeroBin],
          .underflowed = sum(histogram, 0, nonzero),
          .subnormal = sum(histogram, nonzero, normal),
          .overflowed = sum(histogram, overflow, kFiniteBins),
          .non_finite = histogram.counts[kInfinityBin] + histogram.counts[kNanBin]};
}

MagnitudeRange magnitude_percentile(const ExponentHistogram& histogram, double percentile) {
  MANTISSA_CHECK(percentile >= 0.0 && percentile <= 100.0,
                 "[magnitude_percentile] percentile must be between 0 and 100, got {}", percentile);
  const int64_t elements = sum(histogram, 0, kHistogramBins);
  if (elements == 0) return {};
  const int64_t rank = std::max<int64_t>(1, nearest_rank(percentile, elements));
  int64_t below = histogram.counts[kZeroBin];
  if (rank <= below) return {};
  const double amax = std::bit_cast<float>(histogram.amax);
  for (int bin = 0; bin < kFiniteBins; ++bin) {
    below += histogram.counts[bin];
    if (rank > below) continue;
    const MagnitudeRange range = range_of(bin);
    return {range.at_least, std::min(range.at_most, amax)};
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {kInfinity, kInfinity};
}

std::optional<StaticScale> recommended_scale(const ExponentHistogram& histogram, Format format,
                                             const StaticScaleOptions& options) {
  MANTISSA_CHECK(options.headroom > 0.0 && std::isfinite(options.headroom),
                 "[recommended_scale] headroom must be a positive number, got {}", options.headroom);
  const double magnitude = magnitude_percentile(histogram, options.percentile).at_most;
  if (magnitude == 0.0 || !std::isfinite(magnitude)) return std::nullopt;
  const int wanted = std::ilogb(info(format).max / (options.headroom * magnitude));
  const int exponent = std::clamp(wanted, -126, 127);
  return StaticScale{exponent, format_losses(histogram, format, exponent)};
}

}  // namespace mantissa
