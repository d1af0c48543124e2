// When pairs of runs decide, and how often they decide wrongly.
#include "tools/lab/experiment/sequential_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

using V = ComparisonVerdict;

TEST(Judge, SaysWhatTheIntervalShows) {
  const auto say = [](double low, double high, MorePairs more) { return judge(Interval{low, high}, 0.1, more); };
  EXPECT_EQ(say(-0.1, 0.1, MorePairs::kMayCome), V::kEqual);
  EXPECT_EQ(say(0.01, 0.09, MorePairs::kMayCome), V::kEqual) << "known to be small, though it is not 0";
  EXPECT_EQ(say(0.11, 0.5, MorePairs::kMayCome), V::kWorse);
  EXPECT_EQ(say(-0.5, -0.11, MorePairs::kMayCome), V::kBetter);
  // Told from 0, and perhaps of no importance.
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
  const double differences[] = {1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0};  // told from 0 after three of them
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

// Of so many comparisons whose differences are normal with this mean and the deviation 1.
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

// What is said of D = 0 is wrong if it is better or worse, at whatever pair one stops. With intervals of 95 % at every
// look, as if each were the only one, it would be wrong too often.
TEST(SequentialComparison, OfNoDifferenceAnswersAreSeldomWrong) {
  const SequentialOptions options{.margin = 0.0, .level = 0.95, .first_look = 3, .max_pairs = 20};
  const Rates rates = simulate(0.0, options);
  EXPECT_LE(rates.better + rates.worse, 0.05);
  EXPECT_GT(rates.better + rates.worse, 0.0) << "else nothing was tried";
  EXPECT_NEAR(rates.better, rates.worse, 0.01);
  SequentialOptions careless = options;
  careless.level = 1.0 - 0.05 * static_cast<double>(options.looks());
  EXPECT_NEAR(careless.level_of_look(), 0.95, 1e-12);
  const Rates often = simulate(0.0, careless);
  EXPECT_GT(often.better + often.worse, 0.15);
}

// At the margin "equal" is nearly wrong, and "better" is wrong.
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
