#include "tools/lab/analyze/sensitivity/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace mantissa::testing {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Estimate, IsTheMeanWithStudentsInterval) {
  const std::vector<double> values = {1.0, 2.0, 3.0, 6.0};
  const Estimate found = estimate(values);
  EXPECT_DOUBLE_EQ(found.mean, 3.0);
  // Deviation sqrt(14 / 3), t of 3 degrees at 97.5 %: 3.18245 in tables.
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

}  // namespace
}  // namespace mantissa::testing
