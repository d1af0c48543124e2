#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/tensor/half.h"
#include "core/tensor/philox.h"
#include "tests/core/tensor/format_reference.h"

namespace mantissa {
namespace {

using testing::definition_of;
using testing::FormatReference;

template <typename T>
class HalfTest : public ::testing::Test {
 protected:
  uint16_t expected_bits(float value) const {
    const uint32_t code = reference_.nearest(value);  // the code after the maximum's is Inf
    return static_cast<uint16_t>(std::signbit(value) ? code | 0x8000u : code);
  }
  FormatReference reference_{definition_of<T>()};
};
using HalfTypes = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(HalfTest, HalfTypes);

TYPED_TEST(HalfTest, EveryBitPatternDecodesToItsValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(TypeParam{static_cast<uint16_t>(bits)});
    const uint32_t magnitude = bits & 0x7fffu;
    ASSERT_EQ(std::signbit(value), bits >= 0x8000u) << bits;
    if (magnitude < this->reference_.finite_count()) {
      ASSERT_EQ(static_cast<double>(std::fabs(value)), this->reference_.value(magnitude)) << bits;
    } else {
      ASSERT_EQ(std::isinf(value), magnitude == this->reference_.finite_count()) << bits;
      ASSERT_EQ(std::isnan(value), magnitude != this->reference_.finite_count()) << bits;
    }
  }
}

TYPED_TEST(HalfTest, EveryBitPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam half{static_cast<uint16_t>(bits)};
    const TypeParam back = from_float<TypeParam>(to_float(half));
    if (std::isnan(to_float(half))) {
      ASSERT_TRUE(std::isnan(to_float(back))) << bits;
      ASSERT_EQ(back.bits & 0x8000u, bits & 0x8000u) << bits;
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TYPED_TEST(HalfTest, RoundsEveryValueAndMidpointAndTheirNeighbours) {
  for_each_boundary(this->reference_, [&](float value) {
    ASSERT_EQ(from_float<TypeParam>(value).bits, this->expected_bits(value)) << std::hexfloat << value;
  });
}

TYPED_TEST(HalfTest, RoundsRandomBitPatterns) {
  for (uint32_t block = 0; block < 100'000; ++block) {
    for (const uint32_t bits : philox(3, {block, 0, 0, 0})) {
      const auto value = std::bit_cast<float>(bits);
      const TypeParam half = from_float<TypeParam>(value);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(to_float(half))) << bits;
      } else {
        ASSERT_EQ(half.bits, this->expected_bits(value)) << bits;
      }
    }
  }
}

// A payload entirely in the dropped bits must not give Inf.
TYPED_TEST(HalfTest, NanStaysNanWhateverItsPayload) {
  for (const uint32_t payload : {0x1u, 0x1fffu, 0x2000u, 0xffffu, 0x10000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float result = to_float(from_float<TypeParam>(std::bit_cast<float>(sign | 0x7f800000u | payload)));
      EXPECT_TRUE(std::isnan(result)) << std::hex << payload;
      EXPECT_EQ(std::signbit(result), sign != 0) << std::hex << payload;
    }
  }
}

TEST(HalfTest, OverflowThresholds) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_float<Float16>(std::nextafterf(65520.0f, 0.0f)).bits, 0x7bff);  // 65504
  EXPECT_EQ(from_float<Float16>(65520.0f).bits, 0x7c00);                         // Inf
  EXPECT_EQ(from_float<Float16>(0x1p-25f).bits, 0);  // half of the smallest subnormal: tie to even
  EXPECT_EQ(from_float<Float16>(std::nextafterf(0x1p-25f, infinity)).bits, 1);
  EXPECT_EQ(from_float<BFloat16>(std::nextafterf(0x1.ffp127f, 0.0f)).bits, 0x7f7f);
  EXPECT_EQ(from_float<BFloat16>(0x1.ffp127f).bits, 0x7f80);
}

// --- stochastic rounding

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr uint32_t kWords[] = {0, 1, 0x7fffffffu, 0x80000000u, 0xffffffffu};

template <typename T>
class StochasticRoundingTest : public ::testing::Test {
 protected:
  // How many of 65536 words, one for each upper half, round up to the code above `low`; -1 on any other code.
  int64_t rounded_up(float value, uint32_t low) const {
    int64_t up = 0;
    for (uint32_t upper = 0; upper < 65536; ++upper) {
      const uint32_t word = upper << 16 | (upper * 40503u & 0xffffu);  // the lower half must not matter
      const uint32_t code = round_stochastically<T>(value, word).bits & 0x7fffu;
      if (code != low && code != low + 1) return -1;
      up += code == low + 1;
    }
    return up;
  }
  // The fraction of the way from code low to low + 1.
  double fraction(float value, uint32_t low) const {
    const double begin = reference_.value(low), end = reference_.value(low + 1);
    return (static_cast<double>(value) - begin) / (end - begin);
  }

  FormatReference reference_{definition_of<T>()};
};
TYPED_TEST_SUITE(StochasticRoundingTest, HalfTypes);

TYPED_TEST(StochasticRoundingTest, WhatIsRepresentableStaysAsItIs) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam half{static_cast<uint16_t>(bits)};
    const float value = to_float(half);
    const TypeParam expected = std::isnan(value) ? from_float<TypeParam>(value) : half;
    for (const uint32_t word : kWords) ASSERT_EQ(round_stochastically<TypeParam>(value, word), expected) << bits;
  }
}

// Over all upper halves of a word, the number of words that round up equals the exact distance: no bias at all.
// Fractions are multiples of 2^-16 or of fp32's spacing. Codes are those at both ends and a sample between.
TYPED_TEST(StochasticRoundingTest, RoundsUpWithTheProbabilityOfTheDistance) {
  const auto& reference = this->reference_;
  const uint32_t last = reference.finite_count() - 1;
  int64_t checked = 0;
  for (uint32_t low = 0; low <= last; low = low < 8 || low + 9 > last ? low + 1 : std::min(low + 97, last - 8)) {
    const double begin = reference.value(low), gap = reference.value(low + 1) - begin;
    for (const double at : {0x1p-16, 0x1p-13, 0x1p-7, 0.25, 0.5, 0.7236, 1 - 0x1p-7, 1 - 0x1p-13}) {
      const auto value = static_cast<float>(begin + gap * std::floor(at * 0x1p16) * 0x1p-16);
      const double fraction = this->fraction(value, low);
      if (fraction >= 1.0) continue;  // fp32 has no number there
      ASSERT_EQ(static_cast<double>(this->rounded_up(value, low)), fraction * 65536) << value;
      ++checked;
    }
  }
  EXPECT_GT(checked, 500);
}

TYPED_TEST(StochasticRoundingTest, TheSignPlaysNoPart) {
  for (uint32_t i = 0; i < 100000; ++i) {
    const PhiloxCounter words = philox(5, {i, 0, 0, 0});
    const float value = std::bit_cast<float>(words[0] & 0x7fffffffu);
    const TypeParam positive = round_stochastically<TypeParam>(value, words[1]);
    ASSERT_EQ(round_stochastically<TypeParam>(-value, words[1]).bits, positive.bits | 0x8000u) << value;
    if (std::isnan(value)) {
      ASSERT_EQ(positive, from_float<TypeParam>(value));
    }
  }
}

TYPED_TEST(StochasticRoundingTest, OverflowsToInfinity) {
  const auto& reference = this->reference_;
  const uint32_t last = reference.finite_count() - 1;
  const auto largest = static_cast<float>(reference.max());
  const double halfway = reference.midpoint(last);
  EXPECT_EQ(this->rounded_up(static_cast<float>(halfway), last), 32768);  // one in two goes to Inf
  for (const uint32_t word : kWords) {
    EXPECT_EQ(to_float(round_stochastically<TypeParam>(largest, word)), largest);
    EXPECT_EQ(to_float(round_stochastically<TypeParam>(kInf, word)), kInf);
    EXPECT_EQ(to_float(round_stochastically<TypeParam>(-kInf, word)), -kInf);
  }
  if (reference.value(last + 1) > static_cast<double>(kLargest)) return;
  for (const float value : {65536.0f, 1e9f, kLargest}) {
    for (const uint32_t word : kWords) EXPECT_EQ(to_float(round_stochastically<Float16>(value, word)), kInf);
  }
}

// 31 bits decide among fp16's subnormals: the word whose first 31 bits are j - 1 is the last that rounds up.
TEST(StochasticRounding, Fp16SubnormalsAreExactDownTo32PowersOfTwo) {
  const auto rounds_up = [](float value, uint32_t bits31) {
    const uint16_t either[] = {round_stochastically<Float16>(value, bits31 << 1).bits,
                               round_stochastically<Float16>(value, bits31 << 1 | 1).bits};
    EXPECT_EQ(either[0], either[1]);
    return either[0] == 1;
  };
  for (uint32_t i = 0; i < 10000; ++i) {
    const uint32_t j = (philox(6, {i, 0, 0, 0})[0] >> 8) % 0xffffffu + 1;  // 24 bits: fp32 has j * 2^-55
    const float value = std::ldexp(static_cast<float>(j), -55);
    ASSERT_TRUE(rounds_up(value, j - 1)) << value;
    ASSERT_FALSE(rounds_up(value, j)) << value;
  }
  for (const float value : {0x1p-56f, 0x1p-126f, std::numeric_limits<float>::denorm_min()}) {
    EXPECT_FALSE(rounds_up(value, 0)) << value;
  }
}

// With Philox's words: the mean of n draws of a value at fraction f has the standard deviation gap * sqrt(f (1 - f) /
// n). Five of them are exceeded once in 1.7 million times.
TYPED_TEST(StochasticRoundingTest, TheMeanOverManyKeysIsTheValue) {
  constexpr int64_t kDraws = 1 << 16;
  for (const float value : {1.0f / 3.0f, -0.1f, 3.14159f, 1e-5f, -3e-6f, 2e-8f, 1000.3f}) {
    const double lower = static_cast<double>(to_float(round_stochastically<TypeParam>(std::fabs(value), 0)));
    const double upper = static_cast<double>(to_float(round_stochastically<TypeParam>(std::fabs(value), ~0u)));
    ASSERT_NE(lower, upper) << value << " is representable";
    const double magnitude = std::fabs(static_cast<double>(value)), gap = std::fabs(upper - lower);
    const double f = (magnitude - std::min(lower, upper)) / gap;
    double sum = 0.0;
    for (int64_t draw = 0; draw < kDraws; ++draw) {
      const uint32_t word = philox(static_cast<uint64_t>(draw), {3, 0, 2, 1})[static_cast<size_t>(draw % 4)];
      sum += static_cast<double>(to_float(round_stochastically<TypeParam>(value, word)));
    }
    const double bound = 5.0 * gap * std::sqrt(f * (1.0 - f) / kDraws);
    EXPECT_NEAR(sum / kDraws, static_cast<double>(value), bound) << value;
  }
}

}  // namespace
}  // namespace mantissa
