// Codes of values, and values of codes of a tensor with a scale.
#include "core/quant/narrow_codes.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/tensor/half.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

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

// A scale's significand: the smallest, the largest, those next to them, and random ones.
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

// What a rank stores of another one's weight rounds to what it was made of: all codes, the subnormal numbers, the
// maximum and both zeros among them, with scales of every binade.
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

// The bound is needed: with scales not far beyond it, quotients of the smallest numbers are lost.
TEST_P(NarrowCodesTest, NeedTheBoundOfScales) {
  const float scale = power_of_two(126);
  const float stored = to_float(from_float<BFloat16>(unscaled_value_of(format_, 1, scale)));
  EXPECT_NE(code_of(format_, round_to(format_, stored * scale)), 1);
}

INSTANTIATE_TEST_SUITE_P(Formats, NarrowCodesTest, ::testing::Values(Format::kE4M3, Format::kE5M2));

}  // namespace
}  // namespace mantissa
