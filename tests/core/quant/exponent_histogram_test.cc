// Losses derived from a histogram against losses counted by rounding each element.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/quant/exponent_histogram.h"
#include "core/tensor/philox.h"
#include "tests/core/quant/histogram_reference.h"
#include "tests/core/tensor/format_reference.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::FormatReference;
using testing::histogram_of;
using testing::TopExponent;

constexpr float kInf = std::numeric_limits<float>::infinity();

// The magnitude that an exact value rounds to; Inf beyond the maximum.
using Rounding = std::function<double(double)>;

Rounding rounding_to(const FormatReference& reference) {
  return [&reference](double value) {
    const uint32_t code = reference.nearest(value);
    return code == reference.finite_count() ? HUGE_VAL : reference.value(code);
  };
}

struct Target {
  Format format;
  Rounding round;
};

// Formats by definition. fp32 has too many numbers for a list, so the processor rounds the double.
std::vector<Target> targets() {
  static const FormatReference kTf32({8, 10, 127}), kBf16({8, 7, 127}), kFp16({5, 10, 15}),
      kE4M3({4, 3, 7, TopExponent::kNumbersAndOneNan}), kE5M2({5, 2, 15}), kE2M1({2, 1, 1, TopExponent::kNumbers});
  return {{Format::kF32, [](double value) { return std::fabs(static_cast<double>(static_cast<float>(value))); }},
          {Format::kTF32, rounding_to(kTf32)},
          {Format::kBF16, rounding_to(kBf16)},
          {Format::kF16, rounding_to(kFp16)},
          {Format::kE4M3, rounding_to(kE4M3)},
          {Format::kE5M2, rounding_to(kE5M2)},
          {Format::kE2M1, rounding_to(kE2M1)}};
}

FormatLosses counted(const std::vector<float>& values, const Target& target, int scale_exponent) {
  FormatLosses losses{.elements = static_cast<int64_t>(values.size())};
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++losses.non_finite;
      continue;
    }
    if (value == 0.0f) {
      ++losses.zeros;
      continue;
    }
    const double rounded = target.round(std::ldexp(static_cast<double>(value), scale_exponent));
    if (rounded == 0.0) {
      ++losses.underflowed;
    } else if (rounded < info(target.format).min_normal) {
      ++losses.subnormal;
    } else if (std::isinf(rounded)) {
      ++losses.overflowed;
    }
  }
  return losses;
}

// Every fp32 exponent, with the fractions at and around every point where some format's rounding changes.
std::vector<float> boundary_values() {
  std::vector<uint32_t> fractions;
  for (int bits = 0; bits <= 23; ++bits) {
    for (const uint32_t middle : {leading_ones(bits), leading_ones(bits) + (bits == 0 ? 0 : 0x400000u >> bits)}) {
      for (const int by : {-1, 0, 1}) fractions.push_back((middle + static_cast<uint32_t>(by)) & 0x7fffffu);
    }
  }
  std::vector<float> values = {0.0f, -0.0f, kInf, -kInf, NAN, -NAN};
  uint32_t sign = 0;
  for (uint32_t field = 0; field < 255; ++field) {
    for (const uint32_t fraction : fractions) {
      values.push_back(std::bit_cast<float>((sign ^= 0x80000000u) | field << 23 | fraction));
    }
  }
  for (uint32_t bits = 1; bits < 0x800000u; bits += bits / 7 + 1) values.push_back(std::bit_cast<float>(bits));
  return values;
}

TEST(FormatLosses, AreThoseOfRoundingEveryBoundaryAtEveryScale) {
  const std::vector<float> values = boundary_values();
  const ExponentHistogram histogram = histogram_of(values);
  for (const Target& target : targets()) {
    for (int exponent = -300; exponent <= 300; exponent += std::abs(exponent) < 12 ? 1 : 19) {
      EXPECT_EQ(format_losses(histogram, target.format, exponent), counted(values, target, exponent))
          << info(target.format).name << " at 2^" << exponent;
    }
  }
}

std::vector<float> random_patterns(int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(std::bit_cast<float>(philox(7, {static_cast<uint32_t>(i), 0, 0, 0})[0]));
  }
  return values;
}

TEST(FormatLosses, AreThoseOfRoundingRandomBitPatternsAtEveryScale) {
  const std::vector<float> values = random_patterns(3000);
  const ExponentHistogram histogram = histogram_of(values);
  for (const Target& target : targets()) {
    for (int exponent = -280; exponent <= 280; exponent += 8) {
      EXPECT_EQ(format_losses(histogram, target.format, exponent), counted(values, target, exponent))
          << info(target.format).name << " at 2^" << exponent;
    }
  }
}

// Compares with the library's own conversion instead of the reference.
TEST(FormatLosses, AreThoseOfTheLibrarysConversion) {
  const std::vector<float> values = boundary_values();
  const ExponentHistogram histogram = histogram_of(values);
  for (const Format format : kAllFormats) {
    FormatLosses expected{.elements = static_cast<int64_t>(values.size())};
    for (const float value : values) {
      const double rounded = std::fabs(quantize(format, value, Saturation::kNo));
      const bool is_finite = std::isfinite(value);
      expected.non_finite += !is_finite;
      expected.zeros += value == 0.0f;
      expected.underflowed += value != 0.0f && rounded == 0.0;
      expected.subnormal += rounded > 0.0 && rounded < info(format).min_normal;
      // e2m1 cannot represent an overflow. 7 is half-way from its maximum to the next number in sequence.
      expected.overflowed += is_finite && (format == Format::kE2M1 ? std::fabs(value) >= 7 : !std::isfinite(rounded));
    }
    EXPECT_EQ(format_losses(histogram, format, 0), expected) << info(format).name;
  }
}

TEST(FormatLosses, ShareOfAllElements) {
  const FormatLosses losses = format_losses(histogram_of({0.0f, NAN, 1.0f, 0x1p-26f}), Format::kF16, 0);
  EXPECT_EQ(losses, (FormatLosses{.elements = 4, .zeros = 1, .underflowed = 1, .non_finite = 1}));
  EXPECT_EQ(losses.share(losses.underflowed), 0.25);
  EXPECT_EQ(FormatLosses{}.share(0), 0.0);
}

TEST(ExponentHistogram, KeepsApartWhatIsNotANumber) {
  const ExponentHistogram histogram = histogram_of({0.0f, -0.0f, kInf, NAN, -NAN, NAN, 0x1p-149f, -3.0f});
  EXPECT_EQ(histogram.counts[kZeroBin], 2);
  EXPECT_EQ(histogram.counts[kInfinityBin], 1);
  EXPECT_EQ(histogram.counts[kNanBin], 3);
  EXPECT_EQ(histogram.counts[0], 1);  // the smallest subnormal
  EXPECT_EQ(histogram.amax, magnitude_bits(3.0f));
  EXPECT_EQ(histogram_bin(0x7f7fffffu), kFiniteBins - 1);
}

TEST(MagnitudePercentile, HoldsTheElementOfNearestRank) {
  std::vector<float> values = testing::normal_values(4001, 3);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::ldexp(values[i], static_cast<int>(i % 60) - 150);
  for (size_t i = 0; i < 300; ++i) values[i] = 0.0f;
  const ExponentHistogram histogram = histogram_of(values);
  std::vector<double> magnitudes;
  magnitudes.reserve(values.size());
  for (const float value : values) magnitudes.push_back(std::fabs(value));
  std::sort(magnitudes.begin(), magnitudes.end());
  for (const double percentile : {0.0, 1.0, 7.0, 10.0, 50.0, 90.0, 99.0, 99.9, 99.99, 100.0}) {
    const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(percentile / 100.0 * 4001.0)));
    const MagnitudeRange range = magnitude_percentile(histogram, percentile);
    EXPECT_LE(range.at_least, magnitudes[rank - 1]) << percentile;
    EXPECT_GE(range.at_most, magnitudes[rank - 1]) << percentile;
    EXPECT_LE(range.at_most, 1.5 * range.at_least) << percentile;
  }
  EXPECT_EQ(magnitude_percentile(histogram, 100.0).at_most, magnitudes.back());
}

// In doubles 99.9 / 100 * 1000 exceeds 999, and there are other such cases.
TEST(MagnitudePercentile, CountsRanksOfDecimalPercentilesExactly) {
  for (const int64_t elements : {int64_t{1000}, int64_t{2000}, int64_t{10'000}, int64_t{1'000'000'000}}) {
    for (int64_t thousandths = 1; thousandths <= 100'000; thousandths += 7) {
      const int64_t rank = (thousandths * elements + 99'999) / 100'000;
      ExponentHistogram histogram{};
      histogram.counts[histogram_bin(magnitude_bits(1.0f))] = rank;
      histogram.counts[histogram_bin(magnitude_bits(2.0f))] = elements - rank;
      histogram.amax = magnitude_bits(2.0f);
      const double percentile = static_cast<double>(thousandths) / 1000.0;
      ASSERT_EQ(magnitude_percentile(histogram, percentile).at_least, 1.0) << percentile << " of " << elements;
      --histogram.counts[histogram_bin(magnitude_bits(1.0f))];
      ++histogram.counts[histogram_bin(magnitude_bits(2.0f))];
      ASSERT_EQ(magnitude_percentile(histogram, percentile).at_least, 2.0) << percentile << " of " << elements;
    }
  }
}

TEST(MagnitudePercentile, PutsWhatIsNotFiniteAboveAllNumbers) {
  const ExponentHistogram histogram = histogram_of({1.0f, 2.0f, NAN, kInf});
  EXPECT_EQ(magnitude_percentile(histogram, 50.0).at_most, 2.0);
  EXPECT_EQ(magnitude_percentile(histogram, 51.0).at_least, HUGE_VAL);
  EXPECT_EQ(magnitude_percentile(ExponentHistogram{}, 99.0).at_most, 0.0);
  for (const double wrong : {-0.1, 100.1, static_cast<double>(NAN)}) {
    EXPECT_THROW(magnitude_percentile(histogram, wrong), ContractError) << wrong;
  }
}

// Gradients over more binades than fp16 has: every scale loses something at the top or the bottom.
std::vector<float> wide_gradients(uint64_t seed, float binades, float median) {
  std::vector<float> values = testing::normal_values(5000, seed), exponents = testing::normal_values(5000, seed + 1);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= median * std::exp2(exponents[i] * binades);
  return values;
}

constexpr int kLeastScale = -126, kLargestScale = 127;

// Losses at every scale, in ascending order.
std::vector<FormatLosses> losses_by_scale(const std::vector<float>& values, const Target& target) {
  std::vector<FormatLosses> losses;
  for (int exponent = kLeastScale; exponent <= kLargestScale; ++exponent) {
    losses.push_back(counted(values, target, exponent));
  }
  return losses;
}

// Among all scales whose overflow is within the allowed share, the exponent of the one with the fewest elements below
// the normal range; the largest such exponent.
int best_exponent(const std::vector<FormatLosses>& by_scale, double percentile) {
  size_t best = 0;
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < by_scale.size(); ++i) {
    const FormatLosses& losses = by_scale[i];
    const int64_t lost = losses.underflowed + losses.subnormal;
    if (losses.share(losses.overflowed) > 1.0 - percentile / 100.0 || lost > fewest) continue;
    fewest = lost;
    best = i;
  }
  return kLeastScale + static_cast<int>(best);
}

TEST(RecommendedScale, IsWithinAPowerOfTwoOfTheBest) {
  for (const Target& target : targets()) {
    if (target.format != Format::kF16 && target.format != Format::kE5M2) continue;
    for (const auto& [median, binades] :
         {std::pair(0x1p-40f, 3.0f), std::pair(0x1p-20f, 8.0f), std::pair(1.0f, 14.0f)}) {
      const std::vector<float> values = wide_gradients(11, binades, median);
      const ExponentHistogram histogram = histogram_of(values);
      const std::vector<FormatLosses> by_scale = losses_by_scale(values, target);
      for (const double percentile : {99.0, 99.9, 100.0}) {
        const auto scale = recommended_scale(histogram, target.format, {.percentile = percentile, .headroom = 1.0});
        ASSERT_TRUE(scale.has_value());
        EXPECT_LE(std::abs(scale->exponent - best_exponent(by_scale, percentile)), 1)
            << binades << " binades, percentile " << percentile;
        EXPECT_EQ(scale->losses, by_scale[static_cast<size_t>(scale->exponent - kLeastScale)]);
        EXPECT_LE(scale->losses.share(scale->losses.overflowed), 1.0 - percentile / 100.0);
      }
    }
  }
}

TEST(RecommendedScale, LeavesTheHeadroomAskedFor) {
  const ExponentHistogram histogram = histogram_of({0.5f, -1.0f, 0.25f});
  const auto exponent = [&](double headroom) {
    return recommended_scale(histogram, Format::kF16, {.percentile = 100.0, .headroom = headroom})->exponent;
  };
  EXPECT_EQ(exponent(1.0), 15);
  EXPECT_EQ(exponent(2.0), 14);
  EXPECT_EQ(exponent(0.25), 17);
  EXPECT_EQ(recommended_scale(histogram_of({0x1p-149f}), Format::kF16, {})->exponent, 127);
  EXPECT_EQ(recommended_scale(histogram_of({0x1p127f}), Format::kE2M1, {})->exponent, -126);
}

TEST(RecommendedScale, IsNoneWhereNothingCanBeSaidOfThePercentile) {
  EXPECT_FALSE(recommended_scale(ExponentHistogram{}, Format::kF16, {}).has_value());
  EXPECT_FALSE(recommended_scale(histogram_of({0.0f, 0.0f}), Format::kF16, {}).has_value());
  EXPECT_FALSE(recommended_scale(histogram_of({1.0f, NAN}), Format::kF16, {}).has_value());
  const ExponentHistogram one_of_three = histogram_of({1.0f, 1.0f, kInf});
  const auto scale = recommended_scale(one_of_three, Format::kF16, {.percentile = 60.0});
  ASSERT_TRUE(scale.has_value());
  EXPECT_EQ(scale->losses.non_finite, 1);
  for (const double wrong : {0.0, -1.0, HUGE_VAL, static_cast<double>(NAN)}) {
    EXPECT_THROW(recommended_scale(one_of_three, Format::kF16, {.headroom = wrong}), ContractError) << wrong;
  }
}

// --- histogram code

TEST(HistogramCode, GivesBackWhatWasEncoded) {
  ExponentHistogram histogram;
  EXPECT_EQ(decode_histogram(encode_histogram(histogram)), histogram);
  histogram.amax = 0x7f7fffffu;
  histogram.counts[0] = 1;
  histogram.counts[1] = 127;
  histogram.counts[128] = 128;
  histogram.counts[1000] = (int64_t{1} << 62) + 12345;
  histogram.counts[kFiniteBins - 1] = 300;
  histogram.counts[kZeroBin] = 1 << 20;
  histogram.counts[kInfinityBin] = 2;
  histogram.counts[kNanBin] = 3;
  EXPECT_EQ(decode_histogram(encode_histogram(histogram)), histogram);
}

TEST(HistogramCode, EmptyBinsTakeNothing) {
  ExponentHistogram histogram;
  EXPECT_EQ(encode_histogram(histogram).size(), 4u);
  histogram.counts[100] = 5;
  histogram.counts[101] = 6;
  EXPECT_EQ(encode_histogram(histogram).size(), 8u);
}

TEST(HistogramCode, RefusesWhatIsNoCode) {
  ExponentHistogram histogram;
  histogram.counts[kNanBin] = 1 << 20;
  const auto code = encode_histogram(histogram);
  for (size_t size = 0; size < code.size(); ++size) {
    if (size == 4) continue;  // an empty histogram
    EXPECT_THROW(decode_histogram(std::span(code).first(size)), DataError) << size;
  }
  auto longer = code;
  longer.push_back(std::byte{0});
  longer.push_back(std::byte{1});
  EXPECT_THROW(decode_histogram(longer), DataError) << "a bin after the last";
  EXPECT_THROW(decode_histogram(std::vector<std::byte>(30, std::byte{0xff})), DataError) << "an unterminated number";
}

}  // namespace
}  // namespace mantissa
