// Scales against their definitions, by search in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <numbers>
#include <vector>

#include "core/quant/scales.h"
#include "core/tensor/philox.h"
#include "tests/core/quant/random_amax.h"
#include "tests/core/tensor/format_reference.h"

namespace mantissa {
namespace {

using testing::FormatReference;
using testing::TopExponent;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMaxima[] = {448.0f, 57344.0f, 6.0f};

uint32_t bits(float value) { return std::bit_cast<uint32_t>(value); }

// Magnitudes of all binades: each maximum times each power of two with both fp32 neighbours, extremes, random ones.
std::vector<float> magnitudes() {
  std::vector<float> values{std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
                            std::nextafterf(std::numeric_limits<float>::min(), 0.0f),
                            std::numeric_limits<float>::max()};
  for (const float max : kMaxima) {
    for (int exponent = -165; exponent < 128; ++exponent) {
      const float value = std::ldexp(max, exponent);
      for (const float near : {std::nextafterf(value, 0.0f), value, std::nextafterf(value, kInfinity)}) {
        if (near > 0.0f && std::isfinite(near)) values.push_back(near);
      }
    }
  }
  for (uint32_t block = 0; block < 2'000; ++block) {
    for (const uint32_t word : philox(5, {block, 0, 0, 0})) {
      const float value = std::bit_cast<float>(word & 0x7fffffffu);
      if (value > 0.0f && std::isfinite(value)) values.push_back(value);
    }
  }
  return values;
}

// The largest e with amax * 2^e <= max.
int headroom_by_search(float amax, float max) {
  int exponent = -300;
  while (std::ldexp(static_cast<double>(amax), exponent + 1) <= static_cast<double>(max)) ++exponent;
  return exponent;
}

TEST(Scales, HeadroomIsTheLargestExponentThatFits) {
  for (const float max : kMaxima) {
    for (const float amax : magnitudes()) {
      ASSERT_EQ(headroom_exponent(bits(amax), max), headroom_by_search(amax, max)) << std::hexfloat << amax;
    }
  }
}

TEST(Scales, BlocksHaveThatPowerOfTwoWithinItsLimit) {
  for (const float max : kMaxima) {
    for (const float amax : magnitudes()) {
      const float scale = block_scale(bits(amax), max);
      ASSERT_EQ(scale, std::ldexp(1.0f, std::min(headroom_by_search(amax, max), 126))) << std::hexfloat << amax;
      ASSERT_EQ(std::fpclassify(1.0f / scale), FP_NORMAL);
    }
    EXPECT_EQ(block_scale(0, max), 1.0f);
    EXPECT_TRUE(std::isnan(block_scale(bits(kInfinity), max)));
    EXPECT_TRUE(std::isnan(block_scale(bits(std::nanf("")), max)));
  }
}

TEST(Scales, EveryE8M0CodeIsItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const E8M0 scale{static_cast<uint8_t>(code)};
    EXPECT_EQ(static_cast<double>(to_float(scale)), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(static_cast<double>(multiplier_of(scale)), std::ldexp(1.0, 127 - code)) << code;
  }
  EXPECT_TRUE(std::isnan(to_float(kE8M0NaN)));
  EXPECT_TRUE(std::isnan(multiplier_of(kE8M0NaN)));
}

TEST(Scales, MicroscalesAreTheSmallestThatSaturateNothing) {
  for (const float max : kMaxima) {
    for (const float amax : magnitudes()) {
      int code = 0;
      while (static_cast<double>(amax) > static_cast<double>(max) * std::ldexp(1.0, code - 127)) ++code;
      ASSERT_EQ(microscale(bits(amax), max).code, code) << std::hexfloat << amax;
    }
    EXPECT_EQ(microscale(0, max).code, 0);
    EXPECT_EQ(microscale(bits(kInfinity), max), kE8M0NaN);
    EXPECT_EQ(microscale(bits(std::nanf("")), max), kE8M0NaN);
  }
}

TEST(Scales, OfATensorIsTheQuotientWithinItsLimits) {
  for (const float max : kMaxima) {
    for (const int margin : {0, 1, -2, 7}) {
      for (const float amax : magnitudes()) {
        const float quotient = std::min(max / amax, 0x1p126f) * std::ldexp(1.0f, -margin);
        ASSERT_EQ(tensor_scale(bits(amax), max, margin, 3.0f), std::max(quotient, 0x1p-126f)) << std::hexfloat << amax;
      }
      for (const uint32_t none : {0u, bits(kInfinity), bits(std::nanf(""))}) {
        EXPECT_EQ(tensor_scale(none, max, margin, 3.0f), 3.0f);
      }
    }
  }
}

TEST(Scales, TwoLevels) {
  EXPECT_EQ(two_level_tensor_scale(bits(2688.0f)), 1.0f);
  EXPECT_EQ(two_level_tensor_scale(bits(21.0f)), 128.0f);
  EXPECT_EQ(two_level_tensor_scale(0), 1.0f);
  EXPECT_EQ(two_level_tensor_scale(bits(kInfinity)), 1.0f);

  const FormatReference e4m3({4, 3, 7, TopExponent::kNumbersAndOneNan});
  for (const float tensor_amax : {1e-20f, 0.003f, 1.0f, 5.5f, 3e7f}) {
    const float tensor = two_level_tensor_scale(bits(tensor_amax));
    EXPECT_EQ(two_level_block_scale(bits(tensor_amax), tensor), 448.0f);
    for (const float part : {0.0f, 1e-7f, 1e-5f, 0.001f, 0.1f, 0.37f, 0.9f}) {
      const float amax = part * tensor_amax;
      const float block = two_level_block_scale(bits(amax), tensor);
      ASSERT_EQ(static_cast<double>(block), e4m3.value(e4m3.nearest(amax * tensor / 6.0f)));
      const float multiplier = two_level_multiplier(block, tensor);
      ASSERT_EQ(multiplier, block == 0.0f ? 0.0f : tensor / block);
    }
  }
  EXPECT_TRUE(std::isnan(two_level_block_scale(bits(kInfinity), 1.0f)));
  EXPECT_TRUE(std::isnan(two_level_block_scale(bits(std::nanf("")), 1.0f)));
}

// Elements of Gaussian blocks, rounded stochastically with the block's scale rounded to nearest, or up, so that nothing
// saturates. Mean and noise of the rounding are computed, not drawn.
struct BlockRounding {
  double along = 0.0, square = 0.0;  // sums over elements x of E[rounded] * x, and of x * x
  double noise = 0.0;                // of the variance of the rounded ones
  int64_t elements = 0, saturated = 0;

  double bias() const { return along / square - 1.0; }
};

BlockRounding rounding_of_gaussian_blocks(bool up) {
  constexpr double kNumbers[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
  const FormatReference e4m3({4, 3, 7, TopExponent::kNumbersAndOneNan});
  constexpr float kTensorAmax = 6.0f;  // one block of many has it
  const float tensor = two_level_tensor_scale(bits(kTensorAmax));
  BlockRounding sums;
  for (uint32_t block = 0; block < 20'000; ++block) {
    double values[16], amax = 0.0;
    for (uint32_t i = 0; i < 16; i += 2) {
      const auto words = philox(31, {block, i, 0, 0});
      const double radius = std::sqrt(-2.0 * std::log((words[0] + 0.5) * 0x1p-32));
      const double angle = 2.0 * std::numbers::pi * words[1] * 0x1p-32;
      values[i] = std::abs(radius * std::cos(angle));
      values[i + 1] = std::abs(radius * std::sin(angle));
      amax = std::max({amax, values[i], values[i + 1]});
    }
    double scale = two_level_block_scale(bits(static_cast<float>(amax)), tensor);
    if (up && scale < amax * tensor / 6.0) scale = e4m3.value(e4m3.nearest(scale) + 1);
    for (const double x : values) {
      const double scaled = x * tensor / scale, held = std::min(scaled, 6.0);
      const double* const above = std::lower_bound(std::begin(kNumbers), std::end(kNumbers), held);
      const double below = above == kNumbers ? 0.0 : *(above - 1);
      sums.along += held * scale / tensor * x;
      sums.square += x * x;
      sums.noise += (*above - held) * (held - below) * scale / tensor * scale / tensor;
      sums.saturated += scaled > 6.0;
      ++sums.elements;
    }
  }
  return sums;
}

// docs/precision.md weighs the two.
TEST(Scales, RoundingTwoLevelBlocksUpWouldTradeASmallBiasForNoise) {
  const BlockRounding nearest = rounding_of_gaussian_blocks(false), up = rounding_of_gaussian_blocks(true);
  EXPECT_NEAR(static_cast<double>(nearest.saturated) / static_cast<double>(nearest.elements), 0.035, 0.003);
  EXPECT_NEAR(nearest.bias(), -0.0033, 0.0007);
  EXPECT_EQ(up.saturated, 0);
  EXPECT_NEAR(up.bias(), 0.0, 1e-12);
  EXPECT_NEAR(up.noise / nearest.noise, 1.16, 0.04);
  // A signal-to-noise ratio of 22 dB: the bias is a twentieth of the noise of one rounding.
  EXPECT_LT(std::abs(nearest.bias()), 0.06 * std::sqrt(nearest.noise / nearest.square));
}

// For every recipe, the factor after a product undoes the factor before it.
TEST(Scales, FactorsOfABlockAreInverse) {
  constexpr TensorFormat kFormats[] = {{Format::kE4M3, Scaling::kBlock},
                                       {Format::kE5M2, Scaling::kBlock},
                                       {Format::kE4M3, Scaling::kMicro},
                                       {Format::kE5M2, Scaling::kMicro}};
  for (const TensorFormat format : kFormats) {
    for (const float amax : magnitudes()) {
      const BlockFactors factors = block_factors(format, bits(amax), 1.0f);
      ASSERT_EQ(static_cast<double>(factors.before) * static_cast<double>(factors.after), 1.0) << std::hexfloat << amax;
      ASSERT_LE(static_cast<double>(amax) * factors.before, narrow_format(format.format).max) << std::hexfloat << amax;
    }
    EXPECT_EQ(block_factors(format, 0, 1.0f).before * 0.0f, 0.0f);
    EXPECT_TRUE(std::isnan(block_factors(format, bits(kInfinity), 1.0f).before));
  }
  const BlockFactors nothing = block_factors({Format::kE2M1, Scaling::kTwoLevel}, 0, 128.0f);
  EXPECT_EQ(nothing.before, 0.0f);
  EXPECT_EQ(nothing.after, 0.0f);
  const BlockFactors full = block_factors({Format::kE2M1, Scaling::kTwoLevel}, bits(21.0f), 128.0f);
  EXPECT_EQ(full.after, 448.0f);
  EXPECT_EQ(full.before, 128.0f / 448.0f);
}

// --- The state of delayed scaling against one with an explicit list of amaxes.

// Keeps the amaxes themselves, newest first.
class WrittenOut {
 public:
  WrittenOut(DelayedScalingOptions options, float max) : options_(options), max_(max) {}

  float next(float amax) {
    amaxes_.push_front(std::isfinite(amax) ? amax : 0.0f);
    if (amaxes_.size() > static_cast<size_t>(options_.history)) amaxes_.pop_back();
    float chosen = amaxes_.front();
    if (options_.choice == AmaxChoice::kMax) {
      for (const float one : amaxes_) chosen = std::max(chosen, one);
    }
    if (chosen > 0.0f) {
      scale_ = std::min(max_ / chosen, std::ldexp(1.0f, 126)) / std::exp2(static_cast<float>(options_.margin));
    }
    return scale_;
  }

 private:
  DelayedScalingOptions options_;
  float max_;
  float scale_ = 1.0f;
  std::deque<float> amaxes_;
};

TEST(DelayedScaling, EqualsTheWrittenOutStateOverAThousandSteps) {
  for (const AmaxChoice choice : {AmaxChoice::kMax, AmaxChoice::kMostRecent}) {
    for (const int32_t length : {1, 3, 16, 1024}) {
      for (const int32_t margin : {0, 2}) {
        const DelayedScalingOptions options{.history = length, .choice = choice, .margin = margin};
        WrittenOut expected(options, 448.0f);
        std::vector<uint32_t> history(static_cast<size_t>(length), 0);
        float scale = 1.0f;
        for (uint32_t step = 0; step < 1000; ++step) {
          const float amax = testing::random_amax(philox(17, {step, 0, 0, 0}), step);
          scale = next_delayed_scale(options, history.data(), step, magnitude_bits(amax), 448.0f, scale);
          ASSERT_EQ(scale, expected.next(amax)) << "step " << step << ", history " << length;
          ASSERT_TRUE(std::isfinite(scale) && scale > 0.0f);
        }
      }
    }
  }
}

TEST(DelayedScaling, AnOverflowDoesNotHoldTheScale) {
  const DelayedScalingOptions options{.history = 4};
  std::vector<uint32_t> history(4, 0);
  float scale = next_delayed_scale(options, history.data(), 0, magnitude_bits(448.0f), 448.0f, 1.0f);
  EXPECT_EQ(scale, 1.0f);
  scale = next_delayed_scale(options, history.data(), 1, magnitude_bits(kInfinity), 448.0f, scale);
  EXPECT_EQ(scale, 1.0f);
  scale = next_delayed_scale(options, history.data(), 2, magnitude_bits(896.0f), 448.0f, scale);
  EXPECT_EQ(scale, 0.5f);
}

TEST(DelayedScaling, KeepsTheScaleWhileThereIsNoAmax) {
  const DelayedScalingOptions options{.history = 2, .choice = AmaxChoice::kMostRecent};
  std::vector<uint32_t> history(2, 0);
  float scale = next_delayed_scale(options, history.data(), 0, 0, 448.0f, 1.0f);
  EXPECT_EQ(scale, 1.0f);
  scale = next_delayed_scale(options, history.data(), 1, magnitude_bits(1.0f), 448.0f, scale);
  EXPECT_EQ(scale, 448.0f);
  scale = next_delayed_scale(options, history.data(), 2, magnitude_bits(std::nanf("")), 448.0f, scale);
  EXPECT_EQ(scale, 448.0f);
}

}  // namespace
}  // namespace mantissa
