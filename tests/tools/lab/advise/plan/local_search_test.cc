// Local searches against results worked out by hand and against all plans.
#include "tools/lab/advise/plan/plan_advice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/tensor/philox.h"

namespace mantissa::testing {
namespace {

// Lower options cost less, and neighbours with the same option share costs, so the total is no sum of parts.
class Wholes {
 public:
  Wholes(int decisions, int options, uint64_t seed) : options_(options), plan_(static_cast<size_t>(decisions), 0) {
    for (int i = 0; i < 2 * decisions * options; ++i) {
      draws_.push_back(static_cast<double>(philox(seed, {static_cast<uint32_t>(i), 0, 0, 0})[0]) / 4294967296.0);
    }
  }

  PlanTotals price(const Plan& plan) const {
    PlanTotals totals;
    for (size_t i = 0; i < plan.size(); ++i) {
      const size_t place = 2 * (i * static_cast<size_t>(options_) + static_cast<size_t>(plan[i]));
      totals.seconds += (options_ - plan[i]) * (0.5 + draws_[place]);
      totals.bytes += 1.0 + draws_[place];
      totals.damage += plan[i] * plan[i] * draws_[place + 1];
      if (i > 0 && plan[i] == plan[i - 1]) totals.seconds -= 0.4;
    }
    totals.seconds += static_cast<double>(plan.size());
    return totals;
  }

  WholeSearch search(const PlanGoal& goal, double tolerance = 0.0) const {
    return {.options = std::vector<int>(plan_.size(), options_),
            .goal = goal,
            .tolerance = tolerance,
            .starts = {plan_},
            .price = [this](const Plan& plan) { return price(plan); }};
  }

  template <typename Body>
  void for_all(Body body) const {
    Plan plan = plan_;
    for (size_t place = 0; place < plan.size();) {
      body(price(plan));
      for (place = 0; place < plan.size() && ++plan[place] == options_; ++place) plan[place] = 0;
    }
  }

 private:
  int options_;
  Plan plan_;
  std::vector<double> draws_;
};

TEST(WholeSearch, FindsTheOptimumOfWholesWhereAllCanBePriced) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Wholes wholes(6, 3, seed);
    for (const double limit : {10.0, 14.0, 18.0}) {
      const PlanGoal goal{.budget = PlanQuantity::kSeconds, .limit = limit};
      WholeSearch search = wholes.search(goal);
      search.most_plans = 1000;
      const FoundWhole found = search_wholes(search);
      EXPECT_TRUE(found.is_optimum);
      EXPECT_EQ(found.plans_priced, 729);
      double least = std::numeric_limits<double>::infinity();
      wholes.for_all([&](const PlanTotals& totals) {
        if (goal.is_met(totals)) least = std::min(least, totals.damage);
      });
      if (std::isfinite(least)) {
        EXPECT_EQ(found.totals.damage, least) << seed << ", " << limit;
      } else {
        EXPECT_FALSE(goal.is_met(found.totals));
      }
    }
  }
}

TEST(WholeSearch, OfPlansThatAreAsGoodTheFastestIsTaken) {
  const Wholes wholes(5, 3, 3);
  constexpr double kTolerance = 0.3;
  const PlanGoal goal{.budget = PlanQuantity::kBytes, .limit = 100.0};  // all plans meet it
  const FoundWhole exact = search_wholes(wholes.search(goal)), fast = search_wholes(wholes.search(goal, kTolerance));
  EXPECT_EQ(exact.totals.damage, 0.0);
  EXPECT_LE(fast.totals.damage, kTolerance);
  double fastest = std::numeric_limits<double>::infinity();
  wholes.for_all([&](const PlanTotals& totals) {
    if (totals.damage <= kTolerance) fastest = std::min(fastest, totals.seconds);
  });
  EXPECT_EQ(fast.totals.seconds, fastest);
  EXPECT_LT(fast.totals.seconds, exact.totals.seconds);
}

TEST(WholeSearch, LeavesPlansToPriceForTheFastestOfThoseThatAreAsGood) {
  const Wholes wholes(12, 4, 5);
  WholeSearch search = wholes.search({.budget = PlanQuantity::kBytes, .limit = 100.0});
  search.starts = {Plan(12, 3)};  // many steps away from the least damage
  search.most_plans = 120;
  const FoundWhole exact = search_wholes(search);
  search.tolerance = 0.5;
  const FoundWhole fast = search_wholes(search);
  EXPECT_LT(fast.totals.seconds, exact.totals.seconds);
  EXPECT_LE(fast.totals.damage, exact.totals.damage + 2.0 * search.tolerance);
}

TEST(WholeSearch, LeavesNoBetterPlanOneDecisionAwayWhereThereAreTooMany) {
  const Wholes wholes(12, 4, 5);
  const PlanGoal goal{.budget = PlanQuantity::kSeconds, .limit = 30.0};
  WholeSearch search = wholes.search(goal);
  search.most_plans = 20000;
  const FoundWhole found = search_wholes(search);
  EXPECT_FALSE(found.is_optimum);
  EXPECT_TRUE(goal.is_met(found.totals));
  for (size_t place = 0; place < found.plan.size(); ++place) {
    Plan other = found.plan;
    for (other[place] = 0; other[place] < 4; ++other[place]) {
      const PlanTotals totals = wholes.price(other);
      EXPECT_FALSE(rank(goal, totals) < rank(goal, found.totals)) << place << " to " << other[place];
    }
  }
}

TEST(WholeSearch, TakesNoMoreBytesThanThereAreWhereAPlanDoesWithThem) {
  const Wholes wholes(6, 3, 11);
  WholeSearch search = wholes.search({.budget = PlanQuantity::kSeconds, .limit = 16.0});
  search.most_plans = 1000;
  const FoundWhole anything = search_wholes(search);
  double least = std::numeric_limits<double>::infinity();
  wholes.for_all([&](const PlanTotals& totals) { least = std::min(least, totals.bytes); });
  ASSERT_LT(least, anything.totals.bytes);
  search.most_bytes = 0.5 * (least + anything.totals.bytes);
  const FoundWhole confined = search_wholes(search);
  EXPECT_LE(confined.totals.bytes, search.most_bytes);
  EXPECT_GE(confined.totals.damage, anything.totals.damage);
  search.most_bytes = 0.5 * least;
  EXPECT_EQ(search_wholes(search).totals.bytes, least) << "the nearest possible plan";
}

TEST(WholeSearch, PricesNoMoreThanItMay) {
  const Wholes wholes(12, 4, 7);
  WholeSearch search = wholes.search({.budget = PlanQuantity::kDamage, .limit = 5.0});
  search.most_plans = 50;
  EXPECT_LE(search_wholes(search).plans_priced, 51);
}

// ---- Promotions.

PlanDecision decision(const std::string& name, double low_damage, double low_seconds) {
  return {.name = name,
          .options = {{.name = "fp32", .seconds = 1.0},
                      {.name = "bf16", .seconds = 0.5, .damage = low_damage / 10.0},
                      {.name = "fp8", .seconds = low_seconds, .damage = low_damage}}};
}

TEST(Promotion, GivesBackWhatWinsMostForItsTime) {
  // b does as much damage as a, but takes more time to repair.
  const PlanProblem problem{decision("a", 1.0, 0.4), decision("b", 1.0, 0.1), decision("c", 0.01, 0.4)};
  const auto better = promoted(problem, {2, 2, 2});
  ASSERT_TRUE(better.has_value());
  // Raising a to bf16 leaves 1.11 of 2.01, more than half. Then b.
  EXPECT_EQ(*better, (Plan{1, 1, 2}));
}

TEST(Promotion, HasNothingToGiveWhereThereIsNoDamage) {
  const PlanProblem problem{decision("a", 1.0, 0.4), decision("b", 0.0, 0.4)};
  EXPECT_FALSE(promoted(problem, {0, 2}).has_value());
}

TEST(Promotion, ComesToAnEnd) {
  const PlanProblem problem{decision("a", 1.0, 0.4), decision("b", 2.0, 0.4)};
  Plan plan = {2, 2};
  int rounds = 0;
  while (const auto better = promoted(problem, plan)) {
    EXPECT_LE(evaluate(problem, *better).damage, evaluate(problem, plan).damage / 2.0);
    plan = *better;
    ASSERT_LT(++rounds, 10);
  }
  EXPECT_EQ(plan, (Plan{0, 0}));
}

}  // namespace
}  // namespace mantissa::testing
