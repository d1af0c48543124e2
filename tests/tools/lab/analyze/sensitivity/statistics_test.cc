// Estimates, rank correlations, mutual information and entropy against known values.
#include "tools/lab/analyze/sensitivity/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/tensor/philox.h"

namespace mantissa::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Estimate, IsTheMeanWithStudentsInterval) {
  const std::vector<double> values = {1.0, 2.0, 3.0, 6.0};
  const Estimate found = estimate(values);
  EXPECT_DOUBLE_EQ(found.mean, 3.0);
  // Deviation sqrt(14 / 3); t with 3 degrees at 97.5 % is 3.18245 in tables.
  EXPECT_NEAR(found.half_width, 3.18245 * std::sqrt(14.0 / 3.0) / 2.0, 1e-4);
  EXPECT_DOUBLE_EQ(found.error, std::sqrt(14.0 / 3.0) / 2.0);
}

TEST(Estimate, OfOneValueHasNoInterval) {
  const Estimate found = estimate(std::vector<double>{7.0});
  EXPECT_EQ(found.mean, 7.0);
  EXPECT_TRUE(std::isnan(found.half_width));
}

TEST(Estimate, OfWhatIsNotFiniteIsNotKnown) {
  for (const double bad : {kNaN, kInfinity}) {
    const Estimate found = estimate(std::vector<double>{1.0, bad, 2.0});
    EXPECT_TRUE(std::isnan(found.mean));
    EXPECT_TRUE(std::isnan(found.half_width));
  }
}

TEST(RankCorrelation, IsThatOfTheOrder) {
  const std::vector<double> x = {1.0, 2.0, 3.0, 4.0};
  EXPECT_DOUBLE_EQ(rank_correlation(x, std::vector<double>{1.0, 8.0, 27.0, 1000.0}), 1.0);
  EXPECT_DOUBLE_EQ(rank_correlation(x, std::vector<double>{4.0, 3.0, 2.0, -1.0}), -1.0);
  // 1 - 6 (0 + 1 + 1 + 0) / (4 * 15)
  EXPECT_DOUBLE_EQ(rank_correlation(x, std::vector<double>{1.0, 3.0, 2.0, 4.0}), 0.8);
}

TEST(RankCorrelation, GivesEqualValuesTheMeanOfTheirRanks) {
  // Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, squares 4.5 and 5.
  EXPECT_DOUBLE_EQ(rank_correlation(std::vector<double>{1.0, 2.0, 2.0, 9.0}, std::vector<double>{1.0, 2.0, 3.0, 4.0}),
                   4.5 / std::sqrt(4.5 * 5.0));
}

TEST(RankCorrelation, TakesInfinityForTheLargestAndLeavesOutWhatIsNotKnown) {
  EXPECT_DOUBLE_EQ(
      rank_correlation(std::vector<double>{1.0, kNaN, 2.0, kInfinity}, std::vector<double>{1.0, 50.0, 2.0, 3.0}), 1.0);
  EXPECT_TRUE(std::isnan(rank_correlation(std::vector<double>{1.0, kNaN, 2.0}, std::vector<double>{1.0, 2.0, 3.0})));
  EXPECT_TRUE(std::isnan(rank_correlation(std::vector<double>{1.0, 1.0, 1.0}, std::vector<double>{1.0, 2.0, 3.0})));
}

constexpr uint32_t kSamples = 1 << 14;

// Standard normal pairs with this correlation.
struct Pairs {
  std::vector<float> x, y;
};
Pairs normal_pairs(double correlation, uint32_t count = kSamples) {
  Pairs pairs;
  for (uint32_t i = 0; i < count; ++i) {
    const PhiloxCounter words = philox(11, {i, 0, 0, 0});
    const auto [a, b] = normal_pair(words[0], words[1]);
    pairs.x.push_back(a);
    pairs.y.push_back(static_cast<float>(correlation * a + std::sqrt(1.0 - correlation * correlation) * b));
  }
  return pairs;
}

// -1/2 log2(1 - rho^2) (Cover and Thomas, "Elements of Information Theory", 8.5). Binning loses information. The bounds
// are the loss of 32 classes with 2^14 pairs, and grow as the conditional spread approaches a class width.
TEST(MutualInformation, IsThatOfNormalVariables) {
  const struct {
    double correlation, tolerance;
  } cases[] = {{0.0, 0.01}, {0.3, 0.01}, {0.7, 0.01}, {0.9, 0.03}, {0.99, 0.2}};
  for (const auto& [correlation, tolerance] : cases) {
    const Pairs pairs = normal_pairs(correlation);
    const double expected = -0.5 * std::log2(1.0 - correlation * correlation);
    const double found = mutual_information(pairs.x, pairs.y);
    EXPECT_NEAR(found, expected, tolerance) << correlation;
  }
}

TEST(MutualInformation, IsLeftAsItIsByMonotonicFunctions) {
  const Pairs pairs = normal_pairs(0.8);
  std::vector<float> other;
  for (const float value : pairs.y) other.push_back(std::exp(value));
  EXPECT_EQ(mutual_information(pairs.x, pairs.y), mutual_information(pairs.x, other));
}

TEST(MutualInformation, OfAVariableWithItselfIsWhatTheClassesHold) {
  const Pairs pairs = normal_pairs(0.0);
  EXPECT_NEAR(mutual_information(pairs.x, pairs.x), std::log2(kInformationBins), 0.01);
}

TEST(MutualInformation, OfTwoValuesIsOneBit) {
  std::vector<float> signs;
  const Pairs pairs = normal_pairs(0.0);
  for (const float value : pairs.x) signs.push_back(value > 0.0f ? 1.0f : -1.0f);
  EXPECT_NEAR(mutual_information(pairs.x, signs), 1.0, 1.0 / kInformationBins) << "one class has both";
  EXPECT_NEAR(mutual_information(signs, signs), 1.0, 0.01);
  const std::vector<float> zeros(signs.size(), 0.0f);
  EXPECT_EQ(mutual_information(pairs.x, zeros), 0.0);
}

TEST(MutualInformation, IsNotKnownWhereAValueIsNot) {
  Pairs pairs = normal_pairs(0.5);
  pairs.y[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(mutual_information(pairs.x, pairs.y)));
}

TEST(Entropy, IsThatOfKnownDistributions) {
  const Pairs pairs = normal_pairs(0.0);
  const double e = std::exp(1.0);
  EXPECT_NEAR(entropy_in_deviations(pairs.x), std::log2(std::sqrt(2.0 * M_PI * e)), 0.02);
  std::vector<float> uniform, laplace, scaled;
  for (uint32_t i = 0; i < kSamples; ++i) {
    const float u = uniform01(philox(12, {i, 0, 0, 0})[0]) - 0.5f;
    uniform.push_back(u);
    laplace.push_back(std::copysign(std::log(1.0f - 2.0f * std::abs(u) + 1e-7f), u));
    scaled.push_back(1000.0f * u + 5.0f);
  }
  EXPECT_NEAR(entropy_in_deviations(uniform), std::log2(std::sqrt(12.0)), 0.02);
  EXPECT_NEAR(entropy_in_deviations(laplace), std::log2(std::sqrt(2.0) * e), 0.02);
  EXPECT_NEAR(entropy_in_deviations(scaled), entropy_in_deviations(uniform), 0.01) << "in deviations";
}

TEST(Entropy, FallsWhereFewValuesHoldTheDeviation) {
  std::vector<float> values(10000, 0.0f);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const double before = entropy_in_deviations(values);
  values[17] = 1e5f;
  EXPECT_LT(entropy_in_deviations(values), before - 4.0);
}

TEST(Entropy, IsNotKnownOfEqualValuesAndOfWhatIsNotFinite) {
  EXPECT_TRUE(std::isnan(entropy_in_deviations(std::vector<float>(100, 2.0f))));
  EXPECT_TRUE(std::isnan(entropy_in_deviations(std::vector<float>{1.0f, std::numeric_limits<float>::infinity()})));
}

}  // namespace
}  // namespace mantissa::testing
