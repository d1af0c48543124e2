// Intervals of paired differences, against tables. When pairs of runs decide, and how often they decide wrongly.
#include "tools/lab/experiment/paired_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/base/check.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

// Abramowitz and Stegun, table 26.10, to its three decimals.
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

// Closed forms for one and two degrees: tan(pi (p - 1/2)) and (2p - 1) sqrt(2 / (1 - (2p - 1)^2)).
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

// By hand: differences 1, 2, 3, 4 have mean 2.5 and deviation sqrt(5 / 3); t_3(0.975) = 3.1824463.
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
  EXPECT_TRUE(found.interval->low <= 2.5 && 2.5 <= found.interval->high);
  EXPECT_GT(found.interval->low, 0.0);
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

using V = ComparisonVerdict;

TEST(Judge, SaysWhatTheIntervalShows) {
  const auto say = [](double low, double high, MorePairs more) { return judge(Interval{low, high}, 0.1, more); };
  EXPECT_EQ(say(-0.1, 0.1, MorePairs::kMayCome), V::kEqual);
  EXPECT_EQ(say(0.01, 0.09, MorePairs::kMayCome), V::kEqual) << "known to be small, though it is not 0";
  EXPECT_EQ(say(0.11, 0.5, MorePairs::kMayCome), V::kWorse);
  EXPECT_EQ(say(-0.5, -0.11, MorePairs::kMayCome), V::kBetter);
  // Significant, but perhaps not important.
  EXPECT_EQ(say(0.05, 0.2, MorePairs::kMayCome), std::nullopt);
  EXPECT_EQ(say(0.05, 0.2, MorePairs::kNone), V::kWorse);
  EXPECT_EQ(say(-0.2, -0.05, MorePairs::kNone), V::kBetter);
  EXPECT_EQ(say(-0.05, 0.2, MorePairs::kMayCome), std::nullopt);
  EXPECT_EQ(say(-0.05, 0.2, MorePairs::kNone), V::kInconclusive);
  EXPECT_EQ(judge(std::nullopt, 0.1, MorePairs::kMayCome), std::nullopt);
  EXPECT_EQ(judge(std::nullopt, 0.1, MorePairs::kNone), V::kInconclusive);
}

TEST(SequentialComparison, LooksShareTheError) {
  const SequentialOptions options{.margin = 1.0, .level = 0.95, .first_look = 3, .max_pairs = 7};
  EXPECT_EQ(options.looks(), 5);
  EXPECT_NEAR(options.level_of_look(), 0.99, 1e-12);
}

TEST(SequentialComparison, LooksAfterSeveralPairsWhereThatIsAskedFor) {
  const SequentialOptions options{.margin = 0.01, .first_look = 4, .look_every = 3, .max_pairs = 9};
  EXPECT_EQ(options.looks(), 3) << "after 4, 7 and 9 pairs";
  SequentialComparison comparison(options);
  const double differences[] = {1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0};  // significant after three of them
  for (const double difference : differences) {
    comparison.add(0.0, difference);
    EXPECT_EQ(comparison.verdict(), std::nullopt) << comparison.pairs();
  }
  comparison.add(0.0, 0.0);
  EXPECT_EQ(comparison.verdict(), V::kInconclusive);
  SequentialComparison clear(options);
  for (int pair = 0; pair < 4; ++pair) {
    EXPECT_EQ(clear.verdict(), std::nullopt);
    clear.add(0.0, 1.0);
  }
  EXPECT_EQ(clear.verdict(), V::kWorse);
}

TEST(SequentialComparison, EndsAtTheLimitAtTheLatest) {
  SequentialComparison comparison({.margin = 0.01, .first_look = 2, .max_pairs = 4});
  for (const double candidate : {1.0, 3.0, 1.0}) {
    comparison.add(2.0, candidate);
    EXPECT_EQ(comparison.verdict(), std::nullopt);
  }
  comparison.add(2.0, 3.0);
  EXPECT_EQ(comparison.verdict(), V::kInconclusive);
  EXPECT_EQ(comparison.pairs(), 4);
  EXPECT_THROW(comparison.add(1.0, 1.0), ContractError) << "it has been decided";
}

TEST(SequentialComparison, EqualPairsNeedNoMoreThanTheFirstLook) {
  SequentialComparison comparison({.margin = 0.01, .first_look = 3, .max_pairs = 10});
  for (int pair = 0; pair < 3; ++pair) comparison.add(2.0 + pair, 2.001 + pair);
  EXPECT_EQ(comparison.verdict(), V::kEqual);
}

TEST(SequentialComparison, RefusesWhatMakesNoSense) {
  EXPECT_THROW(SequentialComparison({.margin = -1.0}), ContractError);
  EXPECT_THROW(SequentialComparison({.level = 1.0}), ContractError);
  EXPECT_THROW(SequentialComparison({.first_look = 1}), ContractError);
  EXPECT_THROW(SequentialComparison({.first_look = 5, .max_pairs = 4}), ContractError);
  SequentialComparison comparison({.margin = 0.1});
  EXPECT_THROW(comparison.add(1.0, std::numeric_limits<double>::quiet_NaN()), ContractError);
}

struct Rates {
  double better = 0, equal = 0, worse = 0, inconclusive = 0, pairs = 0;
};

// Counts verdicts of comparisons whose differences are normal with this mean and deviation 1.
Rates simulate(double mean, const SequentialOptions& options) {
  constexpr int kTrials = 4000;
  Rates rates;
  for (uint32_t trial = 0; trial < kTrials; ++trial) {
    SequentialComparison comparison(options);
    for (uint32_t pair = 0; !comparison.verdict(); ++pair) {
      const PhiloxCounter words = philox(20240, {trial, pair, 0, 0});
      const auto [noise, shared] = normal_pair(words[0], words[1]);
      comparison.add(10.0 + shared, 10.0 + static_cast<double>(shared) + mean + static_cast<double>(noise));
    }
    rates.pairs += static_cast<double>(comparison.pairs()) / kTrials;
    double& rate = comparison.verdict() == V::kBetter  ? rates.better
                   : comparison.verdict() == V::kEqual ? rates.equal
                   : comparison.verdict() == V::kWorse ? rates.worse
                                                       : rates.inconclusive;
    rate += 1.0 / kTrials;
  }
  return rates;
}

// With no difference, "better" and "worse" are wrong at whichever pair the comparison stops. Intervals of 95 % at every
// look, as if it were the only one, would be wrong too often.
TEST(SequentialComparison, OfNoDifferenceAnswersAreSeldomWrong) {
  const SequentialOptions options{.margin = 0.0, .level = 0.95, .first_look = 3, .max_pairs = 20};
  const Rates rates = simulate(0.0, options);
  EXPECT_LE(rates.better + rates.worse, 0.05);
  EXPECT_GT(rates.better + rates.worse, 0.0) << "no verdict was wrong: the test is too weak";
  EXPECT_NEAR(rates.better, rates.worse, 0.01);
  SequentialOptions careless = options;
  careless.level = 1.0 - 0.05 * static_cast<double>(options.looks());
  EXPECT_NEAR(careless.level_of_look(), 0.95, 1e-12);
  const Rates often = simulate(0.0, careless);
  EXPECT_GT(often.better + often.worse, 0.15);
}

// At the margin "equal" is just wrong, and "better" is wrong.
TEST(SequentialComparison, JustBeyondTheMarginEqualIsSeldomSaid) {
  const SequentialOptions options{.margin = 1.0, .level = 0.95, .first_look = 3, .max_pairs = 20};
  const Rates rates = simulate(1.0, options);
  EXPECT_LE(rates.equal + rates.better, 0.05);
}

TEST(SequentialComparison, LargeAndSmallDifferencesAreFoundWithFewPairs) {
  const SequentialOptions options{.margin = 2.0, .level = 0.95, .first_look = 3, .max_pairs = 20};
  const Rates far = simulate(5.0, options), none = simulate(0.0, options);
  EXPECT_GT(far.worse, 0.95);
  EXPECT_GT(none.equal, 0.95);
  EXPECT_LT(far.pairs, 12.0);
  EXPECT_LT(none.pairs, 12.0);
}

}  // namespace
}  // namespace mantissa
