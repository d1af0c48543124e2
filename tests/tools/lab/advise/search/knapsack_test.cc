// The knapsack meets the optimum that the enumeration finds, for every kind of budget.

#include <gtest/gtest.h>

#include <cstdio>

#include "tests/tools/lab/advise/search/random_problems.h"
#include "tools/lab/advise/search/plan_solver.h"

namespace mantissa {
namespace {

using testing::budgets_of;
using testing::random_problem;

SearchResult solve(std::string_view solver, const PlanProblem& problem, const PlanGoal& goal,
                   const SearchSettings& settings = {}) {
  return make_plan_solver(solver, settings)->solve(problem, goal);
}

// 40 problems of up to 12 decisions, 30 budgets each. Plans, not only totals: of equals both take the first.
TEST(Knapsack, IsTheOptimum) {
  int met = 0, not_met = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const int decisions = seed <= 39 ? 1 + static_cast<int>(seed % 9) : 12;
    const PlanProblem problem = random_problem(seed, decisions);
    for (const PlanGoal& goal : budgets_of(problem, seed)) {
      const SearchResult best = solve("enumeration", problem, goal), found = solve("knapsack", problem, goal);
      ASSERT_EQ(found.plan, best.plan) << "seed " << seed << " budget " << static_cast<int>(goal.budget) << " limit "
                                       << goal.limit;
      ASSERT_EQ(rank(goal, found.totals), rank(goal, best.totals));
      ASSERT_EQ(found.meets_budget, best.meets_budget);
      if (best.meets_budget) {
        EXPECT_EQ(found.gap, 0.0);
        ++met;
      } else {
        ++not_met;
      }
    }
  }
  EXPECT_GT(met, 800);
  EXPECT_GT(not_met, 100);
}

// Numbers that are no dyadic fractions, as measured ones are: sums differ in their last bits, plans do not.
TEST(Knapsack, IsTheOptimumOfSumsThatAreRounded) {
  for (uint64_t seed = 100; seed < 120; ++seed) {
    PlanProblem problem = random_problem(seed, 8);
    for (size_t i = 0; i < problem.decisions.size(); ++i) {
      for (PlanOption& option : problem.decisions[i].options) {
        option.seconds *= 1e-3 / 3;
        option.bytes *= 1e9 / 7;
        option.damage *= 1e-4 / 11;
      }
    }
    for (const PlanGoal& goal : budgets_of(problem, seed)) {
      const SearchResult best = solve("enumeration", problem, goal), found = solve("knapsack", problem, goal);
      ASSERT_EQ(found.meets_budget, best.meets_budget);
      const double least = quantity(best.totals, goal.quantities()[1]);
      EXPECT_NEAR(quantity(found.totals, goal.quantities()[1]), least, 1e-12 * least) << "seed " << seed;
    }
  }
}

// 200 decisions: more plans than can be counted. Labels are kept short by the bound, so that
// the result is exact, and with few labels it says by how much it may be off, and is not off by more.
TEST(Knapsack, SaysByHowMuchItMayBeOffWithFewLabels) {
  const PlanProblem problem = random_problem(7, 200);
  for (const PlanGoal& goal : budgets_of(problem, 7)) {
    const SearchResult exact = solve("knapsack", problem, goal);
    if (!exact.meets_budget) continue;
    ASSERT_EQ(exact.gap, 0.0) << "budget " << static_cast<int>(goal.budget) << " limit " << goal.limit;
    const PlanQuantity least = goal.quantities()[1];
    const SearchResult coarse = solve("knapsack", problem, goal, {.most_labels = 16});
    EXPECT_TRUE(coarse.meets_budget);
    ASSERT_TRUE(coarse.gap.has_value());
    EXPECT_LE(quantity(coarse.totals, least), quantity(exact.totals, least) + *coarse.gap);
    EXPECT_GE(quantity(coarse.totals, least), quantity(exact.totals, least));
    std::printf("budget %d of %.5g: least %.5g, with 16 labels %.5g, said to be off by %.3g at most\n",
                static_cast<int>(goal.budget), goal.limit, quantity(exact.totals, least),
                quantity(coarse.totals, least), *coarse.gap);
  }
}

// Both products that read a tensor take the format that needs a cast of it, or neither does: alone the cast costs more
// than either saves.
TEST(Knapsack, SharesACastOrLeavesIt) {
  PlanProblem problem{
      .decisions = {{"fprop", {{.name = "bf16", .seconds = 4}, {.name = "fp8", .seconds = 2, .damage = 0.5}}},
                    {"wgrad", {{.name = "bf16", .seconds = 4}, {.name = "fp8", .seconds = 2, .damage = 0.5}}}},
      .shared_costs = {{.name = "cast", .seconds = 3, .payers = {{0, 1}, {1, 1}}}}};
  const auto plan = [&](double seconds) {
    return solve("knapsack", problem, {.budget = Budget::kTime, .limit = seconds}).plan;
  };
  EXPECT_EQ(plan(8), (Plan{0, 0}));
  EXPECT_EQ(plan(7), (Plan{1, 1}));
  problem.shared_costs[0].seconds = 1.5;
  EXPECT_EQ(plan(7.5), (Plan{0, 1}));
  EXPECT_EQ(plan(5.5), (Plan{1, 1}));
}

}  // namespace
}  // namespace mantissa
