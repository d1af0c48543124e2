// Random plans and the Parzen search.
#include "tools/lab/advise/search/random_search.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

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

// ---- The Parzen search.

PlanProblem problem_of(int decisions, int options) {
  PlanProblem problem;
  for (int i = 0; i < decisions; ++i) {
    PlanDecision& decision = problem.emplace_back();
    decision.name = fmt::format("d{:02}", i);
    for (int o = 0; o < options; ++o) decision.options.push_back({.name = fmt::format("f{}", o)});
  }
  return problem;
}

// Distance from the target, one of 3^12 plans. The search sees only this value.
double distance(const Plan& plan) {
  double sum = 0;
  for (size_t i = 0; i < plan.size(); ++i) sum += plan[i] != static_cast<int>(i * 7 % 3);
  return sum;
}

TEST(ParzenSearch, FindsTheBestOfHalfAMillionPlansByTryingAFewHundred) {
  const PlanProblem problem = problem_of(12, 3);
  std::set<Plan> tried;
  const auto objective = [&](const Plan& plan) {
    EXPECT_TRUE(tried.insert(plan).second) << "tried twice";
    return distance(plan);
  };
  const ParzenResult result = parzen_search(problem, objective, {.seed = 3, .evaluations = 400});
  EXPECT_EQ(result.value, 0);
  EXPECT_EQ(distance(result.plan), 0);
  EXPECT_EQ(result.evaluations, static_cast<int64_t>(tried.size()));
  // As many random plans reach 3 at best, mostly 4.
  EXPECT_GT(parzen_search(problem, distance, {.seed = 3, .evaluations = 400, .random_plans = 400}).value, 1);
}

TEST(ParzenSearch, TakesANaNForWorseThanEverything) {
  const auto objective = [&](const Plan& plan) {
    return plan[0] == 0 ? std::numeric_limits<double>::quiet_NaN() : distance(plan);
  };
  const ParzenResult result = parzen_search(problem_of(4, 2), objective, {});
  EXPECT_EQ(result.plan, (Plan{1, 1, 0, 0}));
  EXPECT_EQ(result.evaluations, 16);  // there are only 16 plans
}

TEST(ParzenSearch, TriesOnlyPlansThatRepairAllows) {
  const auto repair = [](Plan& plan, Draws&) { plan[2] = 1; };
  const auto objective = [](const Plan& plan) {
    EXPECT_EQ(plan[2], 1);
    return distance(plan);
  };
  EXPECT_EQ(parzen_search(problem_of(6, 3), objective, {.repair = repair}).value, 1);
}

}  // namespace
}  // namespace mantissa
