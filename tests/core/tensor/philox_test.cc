#include "core/tensor/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mantissa {
namespace {

static_assert(philox(0, {0, 0, 0, 0})[0] == 0x6627e8d5u, "philox is a constant expression");

// Known answers of Philox4x32-10, from the Random123 distribution (kat_vectors).
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(0xffffffffffffffffu, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Key words are (low, high) = (a4093822, 299f31d0).
  EXPECT_EQ(philox(0x299f31d0a4093822u, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformStaysBelowOne) {
  EXPECT_EQ(uniform01(0), 0.0f);
  EXPECT_EQ(uniform01(0xffu), 0.0f);  // only the upper 24 bits count
  EXPECT_EQ(uniform01(0x100u), 0x1p-24f);
  EXPECT_EQ(uniform01(0xffffffffu), 1.0f - 0x1p-24f);
}

// Bounds: five standard errors of each moment's estimate from n independent samples.
TEST(PhiloxTest, NormalPairsHaveNormalMoments) {
  constexpr int kPairs = 100'000;
  double sum[5] = {};
  for (uint32_t block = 0; block < kPairs; ++block) {
    const PhiloxCounter words = philox(42, {block, 0, 0, 0});
    for (const float value : normal_pair(words[0], words[1])) {
      double power = 1.0;
      for (double& s : sum) {
        s += power;
        power *= value;
      }
    }
  }
  const double n = sum[0];
  ASSERT_EQ(n, 2.0 * kPairs);
  EXPECT_NEAR(sum[1] / n, 0.0, 5 * std::sqrt(1.0 / n));   // Var(x)   = 1
  EXPECT_NEAR(sum[2] / n, 1.0, 5 * std::sqrt(2.0 / n));   // Var(x^2) = 3 - 1
  EXPECT_NEAR(sum[3] / n, 0.0, 5 * std::sqrt(15.0 / n));  // Var(x^3) = E x^6 = 15
  EXPECT_NEAR(sum[4] / n, 3.0, 5 * std::sqrt(96.0 / n));  // Var(x^4) = 105 - 9
}

TEST(PhiloxTest, NormalPairIsFiniteAtTheExtremes) {
  for (const uint32_t a : {0u, 1u, 0xfffffffeu, 0xffffffffu}) {
    for (const uint32_t b : {0u, 0x40000000u, 0x80000000u, 0xffffffffu}) {
      for (const float value : normal_pair(a, b)) EXPECT_TRUE(std::isfinite(value)) << a << " " << b;
    }
  }
  EXPECT_EQ(normal_pair(0xffffffffu, 123)[0], 0.0f);  // radius sqrt(-2 log 1)
}

}  // namespace
}  // namespace mantissa
