// Intervals of paired differences, against tables. When pairs of runs decide, and how often they decide wrongly.
#include "tools/lab/experiment/paired_comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
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
  const MeanDifference found = mean_difference(std::vector<double>{1, 2, 3, 4}, 0.95);
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
  const MeanDifference found = mean_difference(std::vector<double>{0.5}, 0.95);
  EXPECT_EQ(found.mean, 0.5);
  EXPECT_FALSE(found.interval);
}

TEST(PairedDifference, OfEqualDifferencesTheIntervalIsAPoint) {
  const MeanDifference found = mean_difference(std::vector<double>(5, 0.25), 0.95);
  ASSERT_TRUE(found.interval);
  EXPECT_EQ(found.interval->low, 0.25);
  EXPECT_EQ(found.interval->high, 0.25);
}

TEST(PairedDifference, RefusesNothingAndImpossibleLevels) {
  EXPECT_THROW(mean_difference(std::vector<double>(), 0.95), ContractError);
  EXPECT_THROW(mean_difference(std::vector<double>{1.0, 2.0}, 1.0), ContractError);
}

using V = ComparisonVerdict;

// Two differences whose interval is [low, high].
std::vector<double> pair_of(double low, double high) {
  const double mean = 0.5 * (low + high), half = 0.5 * (high - low);
  const double offset = half / student_t_quantile(0.975, 1);  // of each: their deviation is sqrt(2) times this
  return {mean - offset, mean + offset};
}

TEST(Judge, SaysWhatTheIntervalShows) {
  const auto say = [](double low, double high, MorePairs more) {
    return judge(pair_of(low, high), std::vector<double>(2, 0.1), 0.95, more);
  };
  EXPECT_EQ(say(-0.0999, 0.0999, MorePairs::kMayCome), V::kEqual);
  EXPECT_EQ(say(0.01, 0.09, MorePairs::kMayCome), V::kEqual) << "known to be small, though it is not 0";
  EXPECT_EQ(say(0.11, 0.5, MorePairs::kMayCome), V::kWorse);
  EXPECT_EQ(say(-0.5, -0.11, MorePairs::kMayCome), V::kBetter);
  // Significant, but perhaps not important.
  EXPECT_EQ(say(0.05, 0.2, MorePairs::kMayCome), std::nullopt);
  EXPECT_EQ(say(0.05, 0.2, MorePairs::kNone), V::kWorse);
  EXPECT_EQ(say(-0.2, -0.05, MorePairs::kNone), V::kBetter);
  EXPECT_EQ(say(-0.05, 0.2, MorePairs::kMayCome), std::nullopt);
  EXPECT_EQ(say(-0.05, 0.2, MorePairs::kNone), V::kInconclusive);
  const std::vector<double> one = {0.0}, margin = {0.1};
  EXPECT_EQ(judge(one, margin, 0.95, MorePairs::kMayCome), std::nullopt);
  EXPECT_EQ(judge(one, margin, 0.95, MorePairs::kNone), V::kInconclusive);
}

// The margins have the mean 0.1 in all three cases.
TEST(Judge, TheUncertaintyOfMeasuredMarginsCounts) {
  const std::vector<double> differences = {0.05, 0.06, 0.04, 0.05};
  const auto say = [&](const std::vector<double>& margins) {
    return judge(differences, margins, 0.95, MorePairs::kNone);
  };
  EXPECT_EQ(say({0.1, 0.1, 0.1, 0.1}), V::kEqual);
  EXPECT_EQ(say({0.01, 0.18, 0.2, 0.01}), V::kWorse) << "the difference is above 0, and the margin may be small";
  EXPECT_EQ(say({0.1, 0.11, 0.09, 0.1}), V::kEqual);
}

TEST(Judge, NothingIsEqualToABaselineThatHasNotLearnt) {
  EXPECT_EQ(judge(std::vector<double>{0.0, 0.0, 0.0}, std::vector<double>{1.0, 1.0, 0.0}, 0.95, MorePairs::kNone),
            V::kInconclusive);
  EXPECT_EQ(mean_margin(std::vector<double>{1.0, 0.0}), 0.0);
  EXPECT_EQ(mean_margin(std::vector<double>{1.0, 0.5}), 0.75);
  EXPECT_EQ(mean_margin(std::vector<double>()), 0.0);
}

TEST(LossMargin, IsNatsOrAShareOfWhatTheBaselineLearns) {
  EXPECT_DOUBLE_EQ(LossMargin().of(5.0, 3.0), 0.005);
  EXPECT_EQ((LossMargin{.value = 0.02, .is_share = false}.of(5.0, 3.0)), 0.02);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double final : {5.0, 6.0, nan}) {
    EXPECT_EQ(LossMargin().of(5.0, final), 0.0) << final;
    EXPECT_EQ((LossMargin{.value = 0.02, .is_share = false}.of(5.0, final)), 0.0) << final;
  }
  const LossMargin share = parse_loss_margin("0.5%"), nats = parse_loss_margin("1e-2");
  EXPECT_TRUE(share.is_share && !nats.is_share);
  EXPECT_DOUBLE_EQ(share.value, 0.005);
  EXPECT_DOUBLE_EQ(nats.value, 0.01);
  EXPECT_EQ(describe(share), "0.5 % of what the baseline learns");
  EXPECT_EQ(describe(nats), "0.01 nats");
  for (const char* wrong : {"", "%", "0", "0%", "-1", "-1%", "nan", "inf", "1 nat", "0.5%%", "1,5"}) {
    EXPECT_THROW(parse_loss_margin(wrong), ConfigError) << wrong;
  }
}

TEST(SequentialComparison, LooksShareTheError) {
  const SequentialOptions options{.level = 0.95, .first_look = 3, .max_pairs = 7};
  EXPECT_EQ(options.looks(), 5);
  EXPECT_NEAR(options.level_of_look(), 0.99, 1e-12);
}

TEST(SequentialComparison, LooksAfterSeveralPairsWhereThatIsAskedFor) {
  const SequentialOptions options{.first_look = 4, .look_every = 3, .max_pairs = 9};
  EXPECT_EQ(options.looks(), 3) << "after 4, 7 and 9 pairs";
  SequentialComparison comparison(options);
  const double differences[] = {1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0};  // significant after three of them
  for (const double difference : differences) {
    comparison.add(difference, 0.01);
    EXPECT_EQ(comparison.verdict(), std::nullopt) << comparison.pairs();
  }
  comparison.add(0.0, 0.01);
  EXPECT_EQ(comparison.verdict(), V::kInconclusive);
  SequentialComparison clear(options);
  for (int pair = 0; pair < 4; ++pair) {
    EXPECT_EQ(clear.verdict(), std::nullopt);
    clear.add(1.0, 0.01);
  }
  EXPECT_EQ(clear.verdict(), V::kWorse);
}

TEST(SequentialComparison, EndsAtTheLimitAtTheLatest) {
  SequentialComparison comparison({.first_look = 2, .max_pairs = 4});
  for (const double difference : {-1.0, 1.0, -1.0}) {
    comparison.add(difference, 0.01);
    EXPECT_EQ(comparison.verdict(), std::nullopt);
  }
  comparison.add(1.0, 0.01);
  EXPECT_EQ(comparison.verdict(), V::kInconclusive);
  EXPECT_EQ(comparison.pairs(), 4);
  EXPECT_THROW(comparison.add(0.0, 0.01), ContractError) << "it has been decided";
}

TEST(SequentialComparison, EqualPairsNeedNoMoreThanTheFirstLook) {
  SequentialComparison comparison({.first_look = 3, .max_pairs = 10});
  for (int pair = 0; pair < 3; ++pair) comparison.add(0.001, 0.01);
  EXPECT_EQ(comparison.verdict(), V::kEqual);
}

TEST(SequentialComparison, RefusesWhatMakesNoSense) {
  EXPECT_THROW(SequentialComparison({.level = 1.0}), ContractError);
  EXPECT_THROW(SequentialComparison({.first_look = 1}), ContractError);
  EXPECT_THROW(SequentialComparison({.first_look = 5, .max_pairs = 4}), ContractError);
  SequentialComparison comparison({});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(comparison.add(nan, 0.1), ContractError);
  EXPECT_THROW(comparison.add(1.0, nan), ContractError);
  EXPECT_THROW(comparison.add(1.0, -0.1), ContractError);
}

struct Rates {
  double better = 0, equal = 0, worse = 0, inconclusive = 0, pairs = 0;
};

// Counts verdicts of comparisons whose differences are normal with this mean and deviation 1. The margin of a pair is
// normal as well.
Rates simulate(double mean, double margin, const SequentialOptions& options, double margin_deviation = 0.0) {
  constexpr int kTrials = 4000;
  Rates rates;
  for (uint32_t trial = 0; trial < kTrials; ++trial) {
    SequentialComparison comparison(options);
    for (uint32_t pair = 0; !comparison.verdict(); ++pair) {
      const PhiloxCounter words = philox(20240, {trial, pair, 0, 0});
      const auto [noise, other] = normal_pair(words[0], words[1]);
      comparison.add(mean + static_cast<double>(noise),
                     std::max(0.0, margin + margin_deviation * static_cast<double>(other)));
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

// One look after all pairs, as `mantissa compare` has it.
SequentialOptions single_look(int64_t pairs) { return {.level = 0.95, .first_look = pairs, .max_pairs = pairs}; }

// Two and a half standard errors of a rate near 2.5 % in 4000 trials.
constexpr double kSampling = 0.006;

// A difference as large as the margin is called equal in at most 2.5 % of comparisons, for few seeds and many, small
// margins and large. The margin that the deviation of a few seeds gives is no such margin: for a difference of one
// deviation, "equal" was then said in 24 % of comparisons with 3 seeds, and in 32 % with 8.
TEST(EquivalenceTest, ADifferenceOfTheMarginIsSeldomCalledEqual) {
  for (const int64_t pairs : {2, 3, 5, 8, 20}) {
    for (const double margin : {0.5, 1.0, 3.0, 10.0}) {
      const Rates rates = simulate(margin, margin, single_look(pairs));
      EXPECT_LE(rates.equal, 0.025 + kSampling) << pairs << " pairs, margin " << margin;
      EXPECT_LE(rates.better, 0.025 + kSampling) << pairs << " pairs, margin " << margin;
    }
  }
  EXPECT_GT(simulate(3.0, 3.0, single_look(8)).equal, 0.015) << "the test of equivalence is needlessly strict";
}

TEST(EquivalenceTest, SoItIsWithAMarginThatIsMeasured) {
  for (const int64_t pairs : {3, 5, 8}) {
    for (const double deviation : {0.3, 1.0}) {
      const Rates rates = simulate(4.0, 4.0, single_look(pairs), deviation);
      EXPECT_LE(rates.equal, 0.025 + kSampling) << pairs << " pairs, deviation of the margin " << deviation;
    }
  }
}

TEST(EquivalenceTest, NoDifferenceIsSeldomCalledBetterOrWorse) {
  for (const int64_t pairs : {3, 5, 8}) {
    const Rates rates = simulate(0.0, 0.5, single_look(pairs));
    EXPECT_LE(rates.better + rates.worse, 0.05 + kSampling) << pairs;
  }
}

TEST(EquivalenceTest, ItsPowerIsAsStated) {
  for (const int64_t pairs : {3, 5, 8, 20}) {
    for (const double margin : {1.0, 2.0, 4.0}) {
      const double equal = simulate(0.0, margin, single_look(pairs)).equal;
      EXPECT_NEAR(equivalence_power(1.0, margin, pairs, 0.95), equal, 0.02) << pairs << " pairs, margin " << margin;
    }
  }
  EXPECT_EQ(equivalence_power(0.0, 0.1, 2, 0.95), 1.0);
  EXPECT_EQ(equivalence_power(0.0, 0.0, 2, 0.95), 0.0);
  EXPECT_NEAR(equivalence_power(1.0, 1e-6, 5, 0.95), 0.0, 1e-9);
  // By SciPy's quadrature of the same integral.
  EXPECT_NEAR(equivalence_power(1.0, 1.0, 3, 0.95), 0.06217, 1e-5);
  EXPECT_NEAR(equivalence_power(1.0, 2.0, 5, 0.95), 0.82885, 1e-5);
  EXPECT_NEAR(equivalence_power(1.0, 1.0, 20, 0.95), 0.97718, 1e-5);
}

// SciPy's chi2.ppf(0.2) and (0.05).
TEST(ChiSquared, QuantilesAreThoseOfTables) {
  for (const auto& [degrees, quantile] : {std::pair(2.0, 0.4463), {4.0, 1.6488}, {19.0, 13.7158}, {60.0, 50.6406}}) {
    EXPECT_NEAR(chi_squared_quantile(-0.841621, degrees), quantile, 0.01 * quantile) << degrees;
  }
  for (const auto& [degrees, quantile] : {std::pair(10.0, 3.9403), {36.0, 23.2686}, {180.0, 149.9688}}) {
    EXPECT_NEAR(chi_squared_quantile(-1.644854, degrees), quantile, 0.01 * quantile) << degrees;
  }
}

// The true power of the number of pairs that some first pairs ask for: the mean over such first pairs.
double power_of_asked(uint32_t first_pairs, double margin, bool by_limit) {
  constexpr uint32_t kTrials = 100;
  std::map<int64_t, double> powers;
  double sum = 0.0;
  for (uint32_t trial = 0; trial < kTrials; ++trial) {
    std::vector<double> differences;
    for (uint32_t pair = 0; pair < first_pairs; ++pair) {
      const PhiloxCounter words = philox(20260, {trial, pair, 0, 0});
      differences.push_back(static_cast<double>(normal_pair(words[0], words[1])[0]));
    }
    const double shown = mean_difference(differences, 0.95).stddev;
    const double stddev = by_limit ? largest_stddev(shown, first_pairs) : shown;
    const int64_t asked = std::max<int64_t>(first_pairs, pairs_for_power(stddev, margin, 0.95, kWantedPower));
    const auto [known, is_new] = powers.try_emplace(asked);
    if (is_new) known->second = equivalence_power(1.0, margin, asked, 0.95);
    sum += known->second;
  }
  return sum / kTrials;
}

TEST(EquivalenceTest, ThePairsAskedForHaveTheWantedPower) {
  for (const uint32_t first : {3u, 5u, 8u}) {
    for (const double margin : {0.5, 1.0}) {
      EXPECT_GE(power_of_asked(first, margin, true), kWantedPower) << first << " pairs, margin " << margin;
    }
  }
  const double by_shown = power_of_asked(3, 0.5, false);
  EXPECT_GT(by_shown, 0.4);
  EXPECT_LT(by_shown, 0.65) << "what three pairs show asks for too few";
}

// A difference of the margin, with a look after each pair, as the warning of `mantissa compare` says.
TEST(EquivalenceTest, AddingPairsUntilTheyAreEqualErrsOften) {
  constexpr uint32_t kTrials = 4000;
  double by_ten = 0.0, by_twenty = 0.0;
  for (uint32_t trial = 0; trial < kTrials; ++trial) {
    std::vector<double> differences;
    for (uint32_t pair = 0; pair < 20; ++pair) {
      const PhiloxCounter words = philox(20270, {trial, pair, 0, 0});
      differences.push_back(2.0 + static_cast<double>(normal_pair(words[0], words[1])[0]));
      if (pair < 2) continue;
      const std::vector<double> margins(differences.size(), 2.0);
      if (judge(differences, margins, 0.95, MorePairs::kMayCome) != V::kEqual) continue;
      (pair < 10 ? by_ten : by_twenty) += 1.0 / kTrials;
      break;
    }
  }
  by_twenty += by_ten;
  EXPECT_NEAR(by_ten, 0.083, 0.012);
  EXPECT_NEAR(by_twenty, 0.116, 0.014);
}

TEST(EquivalenceTest, TheWantedPowerIsThatOfTheFewestPairs) {
  for (const double margin : {0.05, 0.3, 1.0, 3.0}) {
    const int64_t pairs = pairs_for_power(1.0, margin, 0.95, 0.8);
    ASSERT_GE(pairs, 2) << margin;
    EXPECT_GE(equivalence_power(1.0, margin, pairs, 0.95), 0.8) << margin;
    EXPECT_LT(pairs > 2 ? equivalence_power(1.0, margin, pairs - 1, 0.95) : 0.0, 0.8) << margin;
  }
  EXPECT_EQ(pairs_for_power(1.0, 1e-4, 0.95, 0.8), 0) << "more than 10,000";
  // For many pairs t is normal: margin sqrt(n) = 1.960 + 1.282.
  EXPECT_NEAR(static_cast<double>(pairs_for_power(1.0, 0.05, 0.95, 0.8)), 3.2415 * 3.2415 / 0.0025, 5.0);
}

// With no difference, "better" and "worse" are wrong at whichever pair the comparison stops. Intervals of 95 % at every
// look, as if it were the only one, would be wrong too often.
TEST(SequentialComparison, OfNoDifferenceAnswersAreSeldomWrong) {
  const SequentialOptions options{.level = 0.95, .first_look = 3, .max_pairs = 20};
  const Rates rates = simulate(0.0, 0.0, options);
  EXPECT_LE(rates.better + rates.worse, 0.05);
  EXPECT_GT(rates.better + rates.worse, 0.0) << "no verdict was wrong: the test is too weak";
  EXPECT_NEAR(rates.better, rates.worse, 0.01);
  SequentialOptions careless = options;
  careless.level = 1.0 - 0.05 * static_cast<double>(options.looks());
  EXPECT_NEAR(careless.level_of_look(), 0.95, 1e-12);
  const Rates often = simulate(0.0, 0.0, careless);
  EXPECT_GT(often.better + often.worse, 0.15);
}

// At the margin "equal" is just wrong, and "better" is wrong.
TEST(SequentialComparison, JustBeyondTheMarginEqualIsSeldomSaid) {
  const Rates rates = simulate(1.0, 1.0, {.level = 0.95, .first_look = 3, .max_pairs = 20});
  EXPECT_LE(rates.equal, 0.025 + kSampling);
  EXPECT_LE(rates.better, 0.025);
}

TEST(SequentialComparison, LargeAndSmallDifferencesAreFoundWithFewPairs) {
  const SequentialOptions options{.level = 0.95, .first_look = 3, .max_pairs = 20};
  const Rates far = simulate(5.0, 2.0, options), none = simulate(0.0, 2.0, options);
  EXPECT_GT(far.worse, 0.95);
  EXPECT_GT(none.equal, 0.95);
  EXPECT_LT(far.pairs, 12.0);
  EXPECT_LT(none.pairs, 12.0);
}

}  // namespace
}  // namespace mantissa
