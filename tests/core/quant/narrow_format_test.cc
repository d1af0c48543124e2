// Rounding of values by arithmetic against a search in the format's list of values.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/quant/narrow_format.h"
#include "core/tensor/half.h"
#include "core/tensor/philox.h"
#include "tests/core/tensor/format_reference.h"

namespace mantissa {
namespace {

using testing::FormatDefinition;
using testing::FormatReference;
using testing::TopExponent;

FormatDefinition definition(Format format) {
  if (format == Format::kE4M3) return {4, 3, 7, TopExponent::kNumbersAndOneNan};
  if (format == Format::kE5M2) return {5, 2, 15};
  return {2, 1, 1, TopExponent::kNumbers};
}

class NarrowRoundingTest : public ::testing::TestWithParam<Format> {
 protected:
  NarrowFormat format_ = narrow_format(GetParam());
  FormatReference reference_{definition(GetParam())};

  void expect_rounded(float value) const {
    const float actual = round_to(format_, value);
    if (std::isnan(value) || (std::isinf(value) && GetParam() != Format::kE5M2)) {
      ASSERT_TRUE(std::isnan(actual)) << std::hexfloat << value;
    } else if (std::isinf(value)) {
      ASSERT_EQ(actual, value);
    } else {
      const uint32_t code = std::min(reference_.nearest(value), reference_.finite_count() - 1);
      ASSERT_EQ(static_cast<double>(std::fabs(actual)), reference_.value(code)) << std::hexfloat << value;
      ASSERT_EQ(std::signbit(actual), std::signbit(value)) << std::hexfloat << value;
    }
  }
};

TEST_P(NarrowRoundingTest, KnowsTheFormat) {
  EXPECT_EQ(static_cast<double>(format_.max), reference_.max());
  EXPECT_EQ(static_cast<double>(format_.min_normal), reference_.value(1u << format_.mantissa_bits));
  EXPECT_EQ(format_.mantissa_bits, definition(GetParam()).mantissa_bits);
  EXPECT_EQ(format_.has_infinity, info(GetParam()).has_infinity);
}

TEST_P(NarrowRoundingTest, RoundsEveryValueAndMidpointAndTheirNeighbours) {
  for_each_boundary(reference_, [&](float value) { expect_rounded(value); });
}

TEST_P(NarrowRoundingTest, RoundsRandomBitPatterns) {
  for (uint32_t block = 0; block < 100'000; ++block) {
    for (const uint32_t bits : philox(3, {block, 0, 0, 0})) expect_rounded(std::bit_cast<float>(bits));
  }
}

TEST_P(NarrowRoundingTest, DistancesAreThoseOfNeighbours) {
  for (uint32_t code = 0; code + 1 < reference_.finite_count(); ++code) {
    const auto middle = static_cast<float>(reference_.midpoint(code));
    EXPECT_EQ(static_cast<double>(neighbour_distance(format_, middle)),
              reference_.value(code + 1) - reference_.value(code));
  }
}

// Between any two neighbours, words below the fraction round up and all others round down.
TEST_P(NarrowRoundingTest, RoundsStochasticallyWithTheRightProbability) {
  for (uint32_t code = 0; code + 1 < reference_.finite_count(); ++code) {
    const double low = reference_.value(code), high = reference_.value(code + 1);
    for (const double fraction : {0x1p-10, 0.25, 0.40625, 0.5, 0.96875}) {
      const auto value = static_cast<float>(low + fraction * (high - low));
      const auto last_up = static_cast<uint32_t>(fraction * 0x1p32) - 1;
      for (const float sign : {1.0f, -1.0f}) {
        for (const uint32_t word : {0u, last_up / 2, last_up}) {
          ASSERT_EQ(round_stochastically_to(format_, sign * value, word), sign * static_cast<float>(high)) << value;
        }
        for (const uint32_t word : {last_up + 1, last_up + (0xffffffffu - last_up) / 2, 0xffffffffu}) {
          ASSERT_EQ(round_stochastically_to(format_, sign * value, word), sign * static_cast<float>(low)) << value;
        }
      }
    }
  }
}

TEST_P(NarrowRoundingTest, LeavesNothingToChanceWhereNothingIsRounded) {
  for (const uint32_t word : {0u, 0x80000000u, 0xffffffffu}) {
    for (uint32_t code = 0; code < reference_.finite_count(); ++code) {
      const auto value = static_cast<float>(reference_.value(code));
      ASSERT_EQ(round_stochastically_to(format_, value, word), value);
      ASSERT_EQ(std::bit_cast<uint32_t>(round_stochastically_to(format_, -value, word)),
                std::bit_cast<uint32_t>(-value));
    }
    EXPECT_EQ(round_stochastically_to(format_, 1e30f, word), format_.max);
    EXPECT_EQ(round_stochastically_to(format_, -std::nextafterf(format_.max, 1e30f), word), -format_.max);
    for (const float value : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
      EXPECT_EQ(std::bit_cast<uint32_t>(round_stochastically_to(format_, value, word)),
                std::bit_cast<uint32_t>(round_to(format_, value)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, NarrowRoundingTest, ::testing::Values(Format::kE4M3, Format::kE5M2, Format::kE2M1),
                         [](const auto& test) { return std::string(mantissa::info(test.param).name); });

// --- Encoding values, and decoding codes of a tensor with a scale.

class NarrowCodesTest : public ::testing::TestWithParam<Format> {
 protected:
  NarrowFormat format_ = narrow_format(GetParam());
};

TEST_P(NarrowCodesTest, AreThoseOfTheFormat) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float expected = decode(GetParam(), code), value = value_of(format_, static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(value_of(format_, code_of(format_, expected)))) << code;
      continue;
    }
    EXPECT_EQ(value, expected) << code;
    EXPECT_EQ(std::signbit(value), std::signbit(expected)) << code;
    EXPECT_EQ(code_of(format_, value), code);
  }
}

// Significands of scales: the smallest, the largest, their neighbours, and random ones.
std::vector<float> significands() {
  std::vector<float> values = {1.0f, 0x1.000002p0f, 0x1.fffffcp0f, 0x1.fffffep0f, 0x1.8p0f, 0x1.555556p0f};
  for (uint32_t block = 0; block < 10; ++block) {
    for (const uint32_t word : philox(5, {block, 0, 0, 0})) {
      values.push_back(std::bit_cast<float>(0x3f800000u | (word >> 9)));
    }
  }
  return values;
}

template <typename T>
void expect_codes_again(const NarrowFormat& format, float scale) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float stored = to_float(from_float<T>(unscaled_value_of(format, static_cast<uint8_t>(code), scale)));
    const float again = round_to(format, stored * scale), value = value_of(format, static_cast<uint8_t>(code));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(again)) << code << " with scale " << std::hexfloat << scale;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(again), std::bit_cast<uint32_t>(value))
          << code << " with scale " << std::hexfloat << scale;
    }
  }
}

// A rank stores another rank's decoded weight. It must round to the same codes again: all codes, including subnormals,
// the maximum and both zeros, with scales of every binade.
TEST_P(NarrowCodesTest, RoundToThemselvesFromWhatIsStoredOfThem) {
  for (int exponent = -kCodeScaleExponent; exponent <= kCodeScaleExponent; ++exponent) {
    for (const float significand : significands()) {
      const float scale = std::ldexp(significand, exponent);
      if (scale > std::ldexp(1.0f, kCodeScaleExponent)) continue;
      expect_codes_again<BFloat16>(format_, scale);
      expect_codes_again<float>(format_, scale);
      if (HasFatalFailure()) return;
    }
  }
}

// The bound on scales is needed: not far beyond it, quotients of the smallest numbers are lost.
TEST_P(NarrowCodesTest, NeedTheBoundOfScales) {
  const float scale = power_of_two(126);
  const float stored = to_float(from_float<BFloat16>(unscaled_value_of(format_, 1, scale)));
  EXPECT_NE(code_of(format_, round_to(format_, stored * scale)), 1);
}

INSTANTIATE_TEST_SUITE_P(Formats, NarrowCodesTest, ::testing::Values(Format::kE4M3, Format::kE5M2));

}  // namespace
}  // namespace mantissa
