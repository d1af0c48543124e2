// Intervals of paired differences, against tables.
#include "tools/lab/experiment/paired_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/base/check.h"

namespace mantissa {
namespace {

// Abramowitz and Stegun, table 26.10, to its three places.
TEST(StudentT, QuantilesAreThoseOfTheTable) {
  struct Row {
    int64_t degrees;
    double p95, p975, p995;
  };
  for (const Row& row : {Row{1, 6.314, 12.706, 63.657}, Row{2, 2.920, 4.303, 9.925}, Row{3, 2.353, 3.182, 5.841},
                         Row{4, 2.132, 2.776, 4.604}, Row{5, 2.015, 2.571, 4.032}, Row{10, 1.812, 2.228, 3.169},
                         Row{29, 1.699, 2.045, 2.756}, Row{120, 1.658, 1.980, 2.617}}) {
    EXPECT_NEAR(student_t_quantile(0.95, row.degrees), row.p95, 5e-4) << row.degrees;
    EXPECT_NEAR(student_t_quantile(0.975, row.degrees), row.p975, 5e-4) << row.degrees;
    EXPECT_NEAR(student_t_quantile(0.995, row.degrees), row.p995, 5e-4) << row.degrees;
  }
}

// Closed forms of one and two degrees: tan(pi (p - 1/2)) and (2p - 1) sqrt(2 / (1 - (2p - 1)^2)).
TEST(StudentT, QuantilesAreThoseOfClosedForms) {
  for (const double p : {0.51, 0.6, 0.9, 0.999, 0.99999}) {
    const double within = 2 * p - 1;
    const double one = std::tan(std::acos(-1.0) * (p - 0.5)), two = within * std::sqrt(2 / (1 - within * within));
    EXPECT_NEAR(student_t_quantile(p, 1) / one, 1.0, 1e-9) << p;
    EXPECT_NEAR(student_t_quantile(p, 2) / two, 1.0, 1e-9) << p;
    EXPECT_EQ(student_t_quantile(1 - p, 7), -student_t_quantile(1 - (1 - p), 7)) << p;
  }
  EXPECT_EQ(student_t_quantile(0.5, 5), 0.0);
}

TEST(StudentT, RefusesWhatIsNoProbability) {
  EXPECT_THROW(student_t_quantile(1.0, 3), ContractError);
  EXPECT_THROW(student_t_quantile(0.0, 3), ContractError);
  EXPECT_THROW(student_t_quantile(0.5, 0), ContractError);
}

// By hand: differences 1, 2, 3, 4 have the mean 2.5 and the deviation sqrt(5 / 3); t_3(0.975) = 3.1824463.
TEST(PairedDifference, IsTheIntervalOfTheDifferences) {
  const std::vector<double> baseline = {10, 20, 30, 40}, candidate = {11, 22, 33, 44};
  const MeanDifference found = paired_difference(baseline, candidate, 0.95);
  EXPECT_EQ(found.pairs, 4);
  EXPECT_DOUBLE_EQ(found.mean, 2.5);
  EXPECT_DOUBLE_EQ(found.stddev, std::sqrt(5.0 / 3.0));
  ASSERT_TRUE(found.interval);
  const double half = 3.1824463 * std::sqrt(5.0 / 3.0) / 2;
  EXPECT_NEAR(found.interval->low, 2.5 - half, 1e-6);
  EXPECT_NEAR(found.interval->high, 2.5 + half, 1e-6);
  EXPECT_TRUE(found.interval->contains(2.5));
  EXPECT_FALSE(found.interval->contains(0.0));
}

TEST(PairedDifference, OfOnePairThereIsNoInterval) {
  const MeanDifference found = paired_difference(std::vector<double>{1.0}, std::vector<double>{1.5}, 0.95);
  EXPECT_EQ(found.mean, 0.5);
  EXPECT_FALSE(found.interval);
}

TEST(PairedDifference, OfEqualDifferencesTheIntervalIsAPoint) {
  const MeanDifference found = mean_difference(std::vector<double>(5, 0.25), 0.95);
  ASSERT_TRUE(found.interval);
  EXPECT_EQ(found.interval->low, 0.25);
  EXPECT_EQ(found.interval->high, 0.25);
}

TEST(PairedDifference, RefusesWhatIsNotPaired) {
  EXPECT_THROW(paired_difference(std::vector<double>{1.0}, std::vector<double>{1.0, 2.0}, 0.95), ContractError);
  EXPECT_THROW(mean_difference(std::vector<double>(), 0.95), ContractError);
  EXPECT_THROW(mean_difference(std::vector<double>{1.0, 2.0}, 1.0), ContractError);
}

}  // namespace
}  // namespace mantissa
