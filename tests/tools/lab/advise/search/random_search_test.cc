// Random plans and the Bayesian search.
#include "tools/lab/advise/search/solver.h"

#include <gtest/gtest.h>

#include "tests/tools/lab/advise/search/random_problems.h"

namespace mantissa {
namespace {

using testing::budgets_of;
using testing::random_problem;

// ---- Random plans.

TEST(RandomPlans, AreRepairedUntilTheyMeetTheBudgetAndNoFurther) {
  const PlanProblem problem = random_problem(9, 10);
  Draws draws(9);
  int repaired = 0;
  for (const PlanGoal& goal : budgets_of(problem, 9)) {
    const Plan drawn = random_plan(problem, draws), nearest = nearest_plan(problem, goal);
    Plan plan = drawn;
    repair_budget(problem, goal, plan, draws);
    const bool can_be_met = goal.is_met(evaluate(problem, nearest)), was_met = goal.is_met(evaluate(problem, drawn));
    EXPECT_EQ(goal.is_met(evaluate(problem, plan)), can_be_met);
    EXPECT_EQ(plan == drawn, was_met) << "a plan that meets the budget stays as it is";
    repaired += can_be_met && !was_met;
  }
  EXPECT_GT(repaired, 5);
}

TEST(RandomPlans, DrawEveryOptionEquallyOftenAndTheSameForTheSameSeed) {
  Draws draws(3), again(3);
  int counts[3] = {};
  for (int i = 0; i < 3000; ++i) {
    const int option = draws.below(3);
    ++counts[option];
    ASSERT_EQ(option, again.below(3));
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 4 * 26);
}

// ---- The Bayesian search.

// Damage is the distance from a target, one of 3^12 plans.
TEST(Bayesian, FindsTheBestOfHalfAMillionPlansByTryingAFewHundred) {
  PlanProblem problem;
  for (int i = 0; i < 12; ++i) {
    PlanDecision& decision = problem.emplace_back();
    decision.name = fmt::format("d{:02}", i);
    for (int o = 0; o < 3; ++o) {
      decision.options.push_back({.name = fmt::format("f{}", o), .damage = o == i * 7 % 3 ? 0.0 : 1.0});
    }
  }
  const PlanGoal goal{.budget = PlanQuantity::kSeconds, .limit = 1};
  EXPECT_EQ(solve("bayesian", problem, goal, {.seed = 3, .evaluations = 400}).totals.damage, 0);
  // As many random plans reach 3 at best, mostly 4; the first 40 are random.
  EXPECT_GT(solve("bayesian", problem, goal, {.seed = 3, .evaluations = 40}).totals.damage, 1);
}

}  // namespace
}  // namespace mantissa
