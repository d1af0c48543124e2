// Exact sums, on the host. tests/core/kernels/reduction/update_decision_test.cc has them on devices.
#include "core/kernels/reduction/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor/philox.h"

namespace mantissa {
namespace {

double sum_of(const std::vector<double>& addends) {
  ExactSum sum;
  for (const double addend : addends) sum.add(addend);
  return sum.value();
}

TEST(ExactSum, HasTheValuesOfSumsThatNeedNoRounding) {
  EXPECT_EQ(sum_of({}), 0.0);
  EXPECT_EQ(sum_of({0.5, 0.25, -3.0}), -2.25);
  EXPECT_EQ(sum_of({0x1p300, 0x1p-300, -0x1p300}), 0x1p-300);
  EXPECT_EQ(sum_of({1e16, 1.0, -1e16}), 1.0);
  EXPECT_EQ(sum_of({-0x1.fffffffffffffp319, 0x1p319}), -0x1.ffffffffffffep318);
}

TEST(ExactSum, RoundsOnceToNearestTiesToEven) {
  const double step = 0x1p-52;
  EXPECT_EQ(sum_of({1.0, step / 2}), 1.0);
  EXPECT_EQ(sum_of({1.0 + step, step / 2}), 1.0 + 2 * step);
  EXPECT_EQ(sum_of({1.0, step / 2, 0x1p-250}), 1.0 + step);
  EXPECT_EQ(sum_of({-1.0, -step / 2, -0x1p-250}), -1.0 - step);
  EXPECT_EQ(sum_of({1.0, step / 2, -0x1p-250}), 1.0);
  EXPECT_EQ(sum_of({0x1.fffffffffffffp0, step / 2}), 2.0);
}

// Two sums of doubles with a common exponent fit into 128 bits.
TEST(ExactSum, AgreesWithIntegers) {
  for (uint32_t round = 0; round < 2000; ++round) {
    ExactSum sum;
    __int128 exact = 0;
    const int exponent = static_cast<int>(round % 500) - 300;
    for (uint32_t i = 0; i < 1 + round % 60; ++i) {
      const auto words = philox(round, {i, 0, 0, 0});
      const auto value = static_cast<int64_t>(uint64_t{words[0]} << 32 | words[1]) >> (words[2] % 60 + 3);
      const int64_t narrow = value >> 11 << (words[3] % 9);  // 53 bits at most: a double
      exact += narrow;
      sum.add(std::ldexp(static_cast<double>(narrow), exponent));
    }
    const bool is_negative = exact < 0;
    unsigned __int128 magnitude = static_cast<unsigned __int128>(is_negative ? -exact : exact);
    int shift = 0;
    bool sticky = false, guard = false;
    while (magnitude >> 53 != 0) {
      sticky |= guard;
      guard = (magnitude & 1) != 0;
      magnitude >>= 1;
      ++shift;
    }
    auto significand = static_cast<int64_t>(magnitude);
    if (guard && (sticky || significand % 2 != 0)) ++significand;
    const double expected = std::ldexp(static_cast<double>(significand), shift + exponent);
    ASSERT_EQ(sum.value(), is_negative ? -expected : expected) << "round " << round;
  }
}

TEST(ExactSum, DependsNeitherOnOrderNorOnGroups) {
  std::vector<double> addends;
  for (uint32_t i = 0; i < 500; ++i) {
    const auto words = philox(9, {i, 0, 0, 0});
    const double sign = words[0] % 2 == 0 ? 1.0 : -1.0;
    addends.push_back(sign * std::ldexp(1.0 + words[1] * 0x1p-32, static_cast<int>(words[2] % 700) - 390));
  }
  ExactSum forward, backward, groups;
  for (const double addend : addends) forward.add(addend);
  std::ranges::reverse(addends);
  for (const double addend : addends) backward.add(addend);
  for (size_t group = 0; group < 7; ++group) {
    ExactSum part;
    for (size_t i = group; i < addends.size(); i += 7) part.add(addends[i]);
    groups += part;
  }
  EXPECT_EQ(forward, backward);
  EXPECT_EQ(forward, groups);
}

TEST(ExactSum, AddendsBelowTheGridAreRoundedByThemselves) {
  constexpr double kGrid = 0x1p-320;
  EXPECT_EQ(sum_of({kGrid / 2}), 0.0);  // a tie, to even
  EXPECT_EQ(sum_of({kGrid * 0.75, kGrid * 0.75}), 2 * kGrid);
  EXPECT_EQ(sum_of({std::numeric_limits<double>::denorm_min(), 1e-310, -1e-310}), 0.0);
  EXPECT_EQ(sum_of({-kGrid * 1.5}), -2 * kGrid);
}

TEST(ExactSum, WhatIsNotFiniteStaysVisible) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(sum_of({1.0, kInf}), kInf);
  EXPECT_EQ(sum_of({-kInf, 1.0}), -kInf);
  EXPECT_TRUE(std::isnan(sum_of({kInf, -kInf})));
  EXPECT_TRUE(std::isnan(sum_of({kNaN, kInf})));
  EXPECT_EQ(sum_of({0x1p320}), kInf);  // beyond the range
}

}  // namespace
}  // namespace mantissa
