// Rare bad runs: outliers among few seeds, and bad runs that no seed shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/tensor/philox.h"
#include "tools/lab/experiment/paired_comparison.h"

namespace mantissa {
namespace {

// (1 - share)^pairs = 1 - level: so many runs show no bad one.
TEST(RareRuns, TheUnseenShareIsThatOfTheBinomialFormula) {
  for (const int64_t pairs : {1, 3, 8, 20}) {
    for (const double level : {0.9, 0.95, 0.99}) {
      double none = 1.0;
      for (int64_t pair = 0; pair < pairs; ++pair) none *= 1.0 - unseen_share(pairs, level);
      EXPECT_NEAR(none, 1.0 - level, 1e-12) << pairs;
    }
  }
  EXPECT_NEAR(unseen_share(3, 0.95), 0.63, 0.005);
  EXPECT_NEAR(unseen_share(8, 0.95), 0.31, 0.005);
}

TEST(BinomialTail, IsTheSumOfItsTerms) {
  EXPECT_EQ(binomial_tail(0, 5, 0.3), 1.0);
  EXPECT_NEAR(binomial_tail(1, 5, 0.3), 1.0 - std::pow(0.7, 5), 1e-15);
  EXPECT_NEAR(binomial_tail(4, 5, 0.3), 5 * std::pow(0.3, 4) * 0.7 + std::pow(0.3, 5), 1e-15);
  EXPECT_NEAR(binomial_tail(3, 27, 0.025), 0.029219, 1e-6);
}

// Grubbs and Beck, Technometrics 14, 1972, table 1, upper 0.5 %: both sides have 1 %.
TEST(RareRuns, LimitsAreThoseOfTheTable) {
  for (const auto& [values, limit] : {std::pair<int64_t, double>{3, 1.155},
                                      {4, 1.496},
                                      {5, 1.764},
                                      {6, 1.973},
                                      {7, 2.139},
                                      {8, 2.274},
                                      {10, 2.482},
                                      {20, 3.001}}) {
    EXPECT_NEAR(grubbs_limit(values, 0.01), limit, 6e-4) << values;
  }
}

TEST(RareRuns, OneBeyondItsMarginStandsApart) {
  const auto say = [](std::vector<double> differences, double margin) {
    const auto found = stands_apart(differences, std::vector<double>(differences.size(), margin), 0.95);
    return found ? describe(*found, 11 + found->pair) : "";
  };
  const std::vector<double> far = {0.001, -0.001, 0.0, 0.002, 0.09, -0.002};
  EXPECT_EQ(say(far, 0.08), "seed 15 stands apart from the others with +0.09 nats; without it the verdict is equal");
  EXPECT_EQ(say(far, 0.1), "") << "within the margin";
  EXPECT_NE(say({-0.09, 0.001, -0.001, 0.0}, 0.08).find("seed 11 stands apart from the others with -0.09"),
            std::string::npos)
      << "on either side";
  const std::vector<double> near = {0.2, 0.21, 0.19, 0.2, 0.21, -0.14};
  EXPECT_EQ(say(near, 0.5), "") << "within the margin, as the others";
  EXPECT_EQ(say(near, 0.15), "seed 16 stands apart from the others with -0.14 nats; without it the verdict is worse")
      << "within the margin, but what makes it inconclusive";
  EXPECT_EQ(say({0.001, -0.001, 0.0, 0.002, 0.005, -0.002}, 1e-4), "") << "it scatters like the others";
  EXPECT_EQ(say({0.5, 0.5, 0.5}, 0.1), "") << "they are the same";
  EXPECT_EQ(say({0.0, 0.5}, 0.1), "") << "two show no outlier";
}

TEST(RareRuns, PairsThatCameOneByOneAreExaminedAsWell) {
  SequentialComparison comparison({.first_look = 6, .max_pairs = 6});
  for (const double difference : {0.001, -0.001, 0.0, 0.002, 0.09, -0.002}) comparison.add(difference, 0.08);
  EXPECT_EQ(comparison.verdict(), ComparisonVerdict::kEqual) << "it counts, and is no veto";
  ASSERT_TRUE(comparison.stands_apart());
  EXPECT_EQ(comparison.stands_apart()->pair, 4u);
}

// Differences centred at `mean`: normal with the deviation 1, and `bad` in 20 are ten more.
std::vector<double> with_rare_runs(uint32_t trial, uint32_t pairs, double mean, double bad) {
  std::vector<double> differences;
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    const PhiloxCounter words = philox(20250, {trial, pair, 0, 0});
    const double noise = static_cast<double>(normal_pair(words[0], words[1])[0]);
    const bool is_bad = words[2] * 0x1p-32 < bad / 20.0;
    differences.push_back(mean + noise + (is_bad ? 10.0 : 0.0) - bad / 2.0);
  }
  return differences;
}

constexpr uint32_t kRareTrials = 4000;

TEST(RareRuns, OfNormalDifferencesOneInAHundredStandsApart) {
  for (const uint32_t pairs : {3, 5, 8, 20}) {
    double apart = 0.0;
    for (uint32_t trial = 0; trial < kRareTrials; ++trial) {
      const std::vector<double> differences = with_rare_runs(trial, pairs, 0.0, 0.0);
      apart += stands_apart(differences, std::vector<double>(pairs, 1e-9), 0.95) ? 1.0 / kRareTrials : 0.0;
    }
    EXPECT_NEAR(apart, kOutlierError, 0.004) << pairs;
  }
}

// How often so many differences are called equal at this margin.
template <typename Differences>
double equal_rate(uint32_t pairs, double margin, const Differences& differences) {
  const std::vector<double> margins(pairs, margin);
  double rate = 0.0;
  for (uint32_t trial = 0; trial < kRareTrials; ++trial) {
    const auto verdict = judge(differences(trial, pairs), margins, 0.95, MorePairs::kNone);
    rate += verdict == ComparisonVerdict::kEqual ? 1.0 / kRareTrials : 0.0;
  }
  return rate;
}

// A run in twenty is bad, and the mean is at the margin.
TEST(RareRuns, EqualIsWrongOnlyWhereNoBadRunWasSeen) {
  constexpr double kMargin = 8.0;
  for (const uint32_t pairs : {3, 5, 8}) {
    const std::vector<double> margins(pairs, kMargin);
    double seen = 0.0;
    for (uint32_t trial = 0; trial < kRareTrials; ++trial) {
      const std::vector<double> differences = with_rare_runs(trial, pairs, kMargin, 1.0);
      if (judge(differences, margins, 0.95, MorePairs::kNone) != ComparisonVerdict::kEqual) continue;
      const bool has_bad = std::ranges::any_of(differences, [](double one) { return one > kMargin + 5.0; });
      seen += has_bad ? 1.0 / kRareTrials : 0.0;
    }
    EXPECT_LE(seen, 0.001) << pairs;
  }
}

// The rates of docs/lab.md, with which "equal" is wrong just at the margin: a bad run in twenty, and differences whose
// logarithm is normal with the deviation 1.
TEST(RareRuns, EqualIsWrongAsOftenAsStated) {
  const auto rare = [](uint32_t trial, uint32_t pairs) { return with_rare_runs(trial, pairs, 8.0, 1.0); };
  const auto skewed = [](uint32_t trial, uint32_t pairs) {
    std::vector<double> differences = with_rare_runs(trial, pairs, 0.0, 0.0);
    for (double& one : differences) one = 8.0 + std::exp(one) - std::exp(0.5);
    return differences;
  };
  struct Stated {
    uint32_t pairs;
    double rare, skewed;
  };
  for (const Stated& one :
       {Stated{3, 0.07, 0.16}, {5, 0.11, 0.18}, {8, 0.15, 0.17}, {20, 0.20, 0.13}, {60, 0.09, 0.09}}) {
    EXPECT_NEAR(equal_rate(one.pairs, 8.0, rare), one.rare, 0.02) << one.pairs;
    EXPECT_NEAR(equal_rate(one.pairs, 8.0, skewed), one.skewed, 0.02) << one.pairs;
  }
}

// The mean is 0, the deviation 1 and the kurtosis 8.3: one of ten has three times the deviation of the others. Real
// differences of losses have 7 to 12.
std::vector<double> heavy_tailed(uint32_t trial, uint32_t pairs, double mean) {
  std::vector<double> differences;
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    const PhiloxCounter words = philox(20251, {trial, pair, 0, 0});
    const double noise = static_cast<double>(normal_pair(words[0], words[1])[0]) / std::sqrt(1.8);
    differences.push_back(mean + (words[2] * 0x1p-32 < 0.1 ? 3.0 : 1.0) * noise);
  }
  return differences;
}

// Where an outlier was a veto, these rates were 0.57, 0.77, 0.52 and 0.43. Eight pairs often lack the tail, and are
// called equal more often than the power of normal differences says.
TEST(HeavyTails, MoreSeedsAreCalledEqualMoreOftenAndAsThePowerSays) {
  double fewer = 0.0;
  for (const uint32_t pairs : {8, 20, 60, 80}) {
    const double equal =
        equal_rate(pairs, 1.0, [](uint32_t trial, uint32_t count) { return heavy_tailed(trial, count, 0.0); });
    EXPECT_GE(equal, fewer) << pairs;
    EXPECT_GT(equal, equivalence_power(1.0, 1.0, pairs, 0.95) - 0.05) << pairs;
    fewer = equal;
  }
  EXPECT_GT(fewer, 0.99);
}

TEST(HeavyTails, ADifferenceOfTheMarginIsSeldomCalledEqual) {
  for (const uint32_t pairs : {3, 8, 20, 80}) {
    const double equal =
        equal_rate(pairs, 2.0, [](uint32_t trial, uint32_t count) { return heavy_tailed(trial, count, 2.0); });
    EXPECT_LE(equal, 0.025 + 0.006) << pairs;
  }
}

// The true mean difference is 0, and a bad run exceeds the margin. "equal" is right, and the bad run is named.
TEST(RareRuns, OneBadRunAmongEqualOnesIsNamed) {
  double equal = 0.0, named = 0.0;
  for (uint32_t trial = 0; trial < kRareTrials; ++trial) {
    const std::vector<double> differences = with_rare_runs(trial, 8, 0.0, 1.0), margins(8, 7.5);
    if (std::ranges::count_if(differences, [](double one) { return one > 7.5; }) != 1) continue;
    if (judge(differences, margins, 0.95, MorePairs::kNone) != ComparisonVerdict::kEqual) continue;
    ++equal;
    const auto outlier = stands_apart(differences, margins, 0.95);
    named += outlier && differences[outlier->pair] > 7.5;
  }
  EXPECT_GT(equal, 500);
  EXPECT_GT(named, 0.9 * equal);
}

}  // namespace
}  // namespace mantissa
