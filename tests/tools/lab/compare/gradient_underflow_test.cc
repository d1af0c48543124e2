// Which loss scale a format needs for gradients whose sizes are known.
#include "tools/lab/compare/gradient_underflow.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/quant/exponent_histogram.h"

namespace mantissa {
namespace {

// As many powers of two with this exponent.
void add(ExponentHistogram& histogram, int exponent, int64_t count) {
  histogram.counts[(exponent - kMinExponent) * kBinsPerExponent] += count;
  histogram.amax = std::max(histogram.amax, std::bit_cast<uint32_t>(static_cast<float>(std::ldexp(1.0, exponent))));
}

TEST(GradientUnderflow, EveryFormatHasItsOwnScale) {
  ExponentHistogram histogram{};
  add(histogram, -30, 50);
  add(histogram, -10, 50);
  const GradientUnderflow found = gradient_underflow(histogram, 3);
  EXPECT_EQ(found.steps, 3);
  EXPECT_EQ(found.elements, 100);
  ASSERT_EQ(found.formats.size(), 5u);
  const auto& fp16 = found.formats[0];
  const size_t unscaled = 8;
  EXPECT_EQ(fp16.losses[unscaled].underflowed, 50) << "2^-30 is below half of 2^-24";
  EXPECT_EQ(fp16.losses[unscaled + 6].underflowed, 0);
  EXPECT_EQ(fp16.losses[unscaled + 25].overflowed, 0) << "2^15";
  EXPECT_EQ(fp16.losses[unscaled + 26].overflowed, 50) << "2^16";
  // The largest 2^floor(log2(65504 / (16 * 2^-10))).
  EXPECT_EQ(fp16.recommended->exponent, 21);
  EXPECT_EQ(found.formats[2].recommended->exponent, 14) << "448 / (16 * 2^-10)";
}

TEST(GradientUnderflow, AFormatThatLosesNothingNeedsNoScale) {
  ExponentHistogram histogram{};
  add(histogram, -30, 50);
  const FormatUnderflow bf16 = gradient_underflow(histogram, 1).formats[1];
  ASSERT_TRUE(bf16.recommended);
  EXPECT_EQ(bf16.recommended->exponent, 0);
  EXPECT_EQ(bf16.recommended->losses.underflowed, 0);
}

}  // namespace
}  // namespace mantissa
