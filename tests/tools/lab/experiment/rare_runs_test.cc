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
    return stands_apart(differences, std::vector<double>(differences.size(), margin));
  };
  const std::vector<double> far = {0.001, -0.001, 0.0, 0.002, 0.09, -0.002};
  EXPECT_EQ(say(far, 0.08),
            "one seed differs by +0.09 nats, far more than the others: use more seeds to see how rare that is");
  EXPECT_EQ(say(far, 0.1), "") << "within the margin";
  EXPECT_NE(say({-0.09, 0.001, -0.001, 0.0}, 0.08).find("by -0.09"), std::string::npos) << "on either side";
  EXPECT_EQ(say({0.001, -0.001, 0.0, 0.002, 0.005, -0.002}, 1e-4), "") << "it scatters like the others";
  EXPECT_EQ(say({0.5, 0.5, 0.5}, 0.1), "") << "they are the same";
  EXPECT_EQ(say({0.0, 0.5}, 0.1), "") << "two show no outlier";
}

TEST(RareRuns, PairsThatCameOneByOneAreExaminedAsWell) {
  SequentialComparison comparison({.first_look = 6, .max_pairs = 6});
  for (const double difference : {0.001, -0.001, 0.0, 0.002, 0.09, -0.002}) comparison.add(difference, 0.08);
  EXPECT_EQ(comparison.verdict(), ComparisonVerdict::kEqual) << "in the mean";
  EXPECT_NE(comparison.stands_apart(), "");
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
      apart += stands_apart(differences, std::vector<double>(pairs, 1e-9)).empty() ? 0.0 : 1.0 / kRareTrials;
    }
    EXPECT_NEAR(apart, kOutlierError, 0.004) << pairs;
  }
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
      if (!stands_apart(differences, margins).empty()) continue;
      const bool has_bad = std::ranges::any_of(differences, [](double one) { return one > kMargin + 5.0; });
      seen += has_bad ? 1.0 / kRareTrials : 0.0;
    }
    EXPECT_LE(seen, 0.001) << pairs;
  }
}

// The true mean difference is 0, and a bad run exceeds the margin. The t test says "equal" although it sees a bad run.
TEST(RareRuns, OneBadRunAmongEqualOnesIsNotCalledEqual) {
  double before = 0.0, after = 0.0;
  for (uint32_t trial = 0; trial < kRareTrials; ++trial) {
    const std::vector<double> differences = with_rare_runs(trial, 8, 0.0, 1.0), margins(8, 7.5);
    if (std::ranges::count_if(differences, [](double one) { return one > 7.5; }) != 1) continue;
    if (judge(differences, margins, 0.95, MorePairs::kNone) != ComparisonVerdict::kEqual) continue;
    ++before;
    after += stands_apart(differences, margins).empty();
  }
  EXPECT_GT(before, 500);
  EXPECT_LT(after, 0.1 * before);
}

}  // namespace
}  // namespace mantissa
