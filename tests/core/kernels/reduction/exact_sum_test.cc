// Exact sums, against sums of Shewchuk's expansions.
#include "core/kernels/reduction/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace mantissa::kernel_test::exact_sum_test {
namespace {

// The correctly rounded sum of finite doubles without overflow, as in Python's math.fsum (Shewchuk 1997, "Adaptive
// precision floating-point arithmetic"): an expansion of numbers whose bits do not overlap.
double correctly_rounded(const std::vector<double>& addends) {
  std::vector<double> parts;  // by increasing magnitude
  for (double x : addends) {
    size_t kept = 0;
    for (double y : parts) {
      if (std::abs(x) < std::abs(y)) std::swap(x, y);
      const double high = x + y, low = y - (high - x);
      if (low != 0.0) parts[kept++] = low;
      x = high;
    }
    parts.resize(kept);
    parts.push_back(x);
  }
  double high = 0.0, low = 0.0;
  while (!parts.empty() && low == 0.0) {
    const double x = high, y = parts.back();
    parts.pop_back();
    high = x + y;
    low = y - (high - x);
  }
  // A tie was rounded to even, but smaller parts decide.
  if (!parts.empty() && (low < 0.0) == (parts.back() < 0.0)) {
    const double twice = low * 2.0, next = high + twice;
    if (twice == next - high) high = next;
  }
  return high;
}

ExactSum sum_of(const std::vector<double>& addends) {
  ExactSum sum;
  for (const double x : addends) sum.add(x);
  return sum;
}

void expect_exact(const std::vector<double>& addends) {
  const double value = sum_of(addends).value(), expected = correctly_rounded(addends);
  ASSERT_EQ(value, expected) << std::hexfloat << value << " instead of " << expected;
}

constexpr ExactSum three() {
  ExactSum sum;
  for (const double x : {0x1p100, 3.0, -0x1p100}) sum.add(x);
  return sum;
}
static_assert(three().value() == 3.0);
static_assert(ExactSum().value() == 0.0);

TEST(ExactSum, IsRoundedOnceToTheNearestDouble) {
  const double ulp = 0x1p-52, tiny = 0x1p-300;
  expect_exact({0.1, 0.2});
  expect_exact({1.0, ulp / 2});               // a tie: even is below
  expect_exact({1.0 + ulp, ulp / 2});         // a tie: even is above
  expect_exact({1.0, ulp / 2, tiny});         // just above a tie
  expect_exact({1.0 + ulp, ulp / 2, -tiny});  // just below a tie
  expect_exact({-1.0, -ulp / 2, -tiny});
  expect_exact({0x1.fffffffffffffp10, 0x1p-43});  // up to a power of two
  expect_exact({0x1p100, -0x1p47, 0x1p-60, 0x1p-61});
  EXPECT_EQ(sum_of({1.0, ulp / 2}).value(), 1.0);
  EXPECT_EQ(sum_of({1.0, ulp / 2, tiny}).value(), 1.0 + ulp);
}

TEST(ExactSum, AgreesWithExpansionsForRandomExponents) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> fraction(0.5, 1.0);
  for (const int range : {0, 3, 30, 60, 300}) {
    std::uniform_int_distribution<int> exponents(-range, std::min(range, 310));
    for (int round = 0; round < 300; ++round) {
      std::vector<double> addends;
      for (int i = 0; i < 1 + round % 40; ++i) {
        const double x = std::ldexp(fraction(random), exponents(random));
        addends.push_back(round % 3 == 0 || random() % 2 == 0 ? x : -x);
        // Nearly the opposite of the sum so far: most digits cancel.
        if (round % 5 == 4 && i % 4 == 3) addends.push_back(-correctly_rounded(addends));
      }
      // The bits of an addend below the grid would be rounded.
      for (double& x : addends) x = std::ldexp(std::round(std::ldexp(x, 260)), -260);
      expect_exact(addends);
    }
  }
}

TEST(ExactSum, NeitherOrderNorGroupingChangesABit) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> fraction(-1.0, 1.0);
  std::uniform_int_distribution<int> exponents(-340, 318);
  std::vector<double> addends;
  for (int i = 0; i < 500; ++i) addends.push_back(std::ldexp(fraction(random), exponents(random)));
  for (int i = 0; i < 20; ++i) addends.push_back(-addends[static_cast<size_t>(i) * 7]);
  const ExactSum expected = sum_of(addends);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(addends.begin(), addends.end(), random);
    EXPECT_TRUE(sum_of(addends) == expected);
    ExactSum first, second;
    for (size_t i = 0; i < addends.size(); ++i) (random() % 3 == 0 ? first : second).add(addends[i]);
    ExactSum reversed = second;
    reversed += first;
    first += second;
    EXPECT_TRUE(first == expected && reversed == expected);
  }
}

TEST(ExactSum, RoundsAddendsToTheGridAndTakesLargeOnesForInfinite) {
  constexpr double kGrid = 0x1p-320;
  EXPECT_EQ(sum_of({kGrid}).value(), kGrid);
  EXPECT_EQ(sum_of({0.5 * kGrid}).value(), 0.0) << "a tie, to even";
  EXPECT_EQ(sum_of({1.5 * kGrid}).value(), 2.0 * kGrid) << "a tie, to even";
  EXPECT_EQ(sum_of({std::nextafter(0.5 * kGrid, 1.0)}).value(), kGrid);
  EXPECT_EQ(sum_of({-std::nextafter(0.5 * kGrid, 1.0)}).value(), -kGrid);
  EXPECT_EQ(sum_of({0.25 * kGrid, 0.25 * kGrid, 0.25 * kGrid}).value(), 0.0) << "each addend for itself";
  EXPECT_EQ(sum_of({1.25 * kGrid, -kGrid}).value(), 0.0);
  EXPECT_EQ(sum_of({std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::min()}).value(), 0.0);
  EXPECT_EQ(sum_of({0x1p-298}).value(), 0x1p-298) << "the square of the smallest fp32 number";
  const double largest = std::nextafter(0x1p320, 0.0);
  EXPECT_EQ(sum_of({largest}).value(), largest);
  EXPECT_EQ(sum_of({largest, kGrid, -largest}).value(), kGrid);
  EXPECT_EQ(sum_of({0x1p320}).value(), HUGE_VAL);
  EXPECT_EQ(sum_of({-0x1p320, 1.0}).value(), -HUGE_VAL);
  EXPECT_EQ(sum_of({std::numeric_limits<double>::max()}).value(), HUGE_VAL);
}

TEST(ExactSum, NeverHidesNanOrInfinity) {
  EXPECT_TRUE(std::isnan(sum_of({1.0, NAN}).value()));
  EXPECT_TRUE(std::isnan(sum_of({-NAN, HUGE_VAL}).value()));
  EXPECT_TRUE(std::isnan(sum_of({HUGE_VAL, 1.0, -HUGE_VAL}).value()));
  EXPECT_EQ(sum_of({HUGE_VAL, -1e90, HUGE_VAL}).value(), HUGE_VAL);
  EXPECT_EQ(sum_of({-HUGE_VAL}).value(), -HUGE_VAL);
  EXPECT_FALSE(sum_of({HUGE_VAL}).is_finite());
  EXPECT_FALSE(sum_of({NAN}).is_finite());
  EXPECT_TRUE(sum_of({1e90, -1e90}).is_finite());
  ExactSum sum = sum_of({HUGE_VAL}), other = sum_of({-HUGE_VAL});
  sum += other;
  EXPECT_TRUE(std::isnan(sum.value()));
}

TEST(ExactSum, AnEmptySumAndOneThatCancelsArePositiveZero) {
  EXPECT_FALSE(std::signbit(ExactSum().value()));
  EXPECT_FALSE(std::signbit(sum_of({-0.0, -0.0}).value()));
  EXPECT_FALSE(std::signbit(sum_of({-1e60, 1e60}).value()));
}

// Sums grow beyond the range of addends; 2^30 addends fit, of the largest digits.
TEST(ExactSum, ManyAddendsFit) {
  ExactSum sum = sum_of({std::nextafter(0x1p320, 0.0)});
  for (int doubling = 0; doubling < 30; ++doubling) {
    const ExactSum half = sum;
    sum += half;
  }
  EXPECT_EQ(sum.value(), 0x1p30 * std::nextafter(0x1p320, 0.0));
  for (const double sign : {1.0, -1.0}) {
    ExactSum full;
    std::vector<double> addends;
    for (int digit = 0; digit < ExactSum::kDigits; ++digit) {
      full.words[digit] = static_cast<int64_t>(sign) * (int64_t{0xffffffff} << 30);
      addends.push_back(sign * std::ldexp(4294967295.0 * 0x1p30, ExactSum::kLowest + 32 * digit));
    }
    EXPECT_EQ(full.value(), correctly_rounded(addends));
    full.words[0] = -full.words[0];
    addends[0] = -addends[0];
    EXPECT_EQ(full.value(), correctly_rounded(addends));
  }
}

}  // namespace
}  // namespace mantissa::kernel_test::exact_sum_test
