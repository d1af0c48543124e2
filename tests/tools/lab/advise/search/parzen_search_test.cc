#include "tools/lab/advise/search/parzen_search.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace mantissa {
namespace {

PlanUnits units_of(int decisions, int options) {
  PlanProblem problem;
  for (int i = 0; i < decisions; ++i) {
    PlanDecision& decision = problem.decisions.emplace_back();
    decision.name = fmt::format("d{:02}", i);
    for (int o = 0; o < options; ++o) decision.options.push_back({.name = fmt::format("f{}", o)});
  }
  return PlanUnits(problem);
}

// Distance from one plan of 3^12: what a search over values alone has to find.
double distance(const UnitPlan& plan) {
  double sum = 0;
  for (size_t u = 0; u < plan.size(); ++u) sum += plan[u] != static_cast<int>(u * 7 % 3);
  return sum;
}

TEST(ParzenSearch, FindsTheBestOfHalfAMillionPlansByTryingAFewHundred) {
  const PlanUnits units = units_of(12, 3);
  std::set<UnitPlan> tried;
  const auto objective = [&](const UnitPlan& plan) {
    EXPECT_TRUE(tried.insert(plan).second) << "tried twice";
    return distance(plan);
  };
  const ParzenResult result = parzen_search(units, objective, {.seed = 3, .evaluations = 400});
  EXPECT_EQ(result.value, 0);
  EXPECT_EQ(distance(result.plan), 0);
  EXPECT_EQ(result.evaluations, static_cast<int64_t>(tried.size()));
  // As many plans at random come to 3 at best, more often 4.
  EXPECT_GT(parzen_search(units, distance, {.seed = 3, .evaluations = 400, .random_plans = 400}).value, 1);
}

TEST(ParzenSearch, TakesANaNForWorseThanEverything) {
  const PlanUnits units = units_of(4, 2);
  const auto objective = [&](const UnitPlan& plan) {
    return plan[0] == 0 ? std::numeric_limits<double>::quiet_NaN() : distance(plan);
  };
  const ParzenResult result = parzen_search(units, objective, {});
  EXPECT_EQ(result.plan, (UnitPlan{1, 1, 0, 0}));
  EXPECT_EQ(result.evaluations, 16);  // there are no more
}

TEST(ParzenSearch, TriesOnlyPlansThatRepairAllows) {
  const PlanUnits units = units_of(6, 3);
  const auto repair = [](UnitPlan& plan, Draws&) { plan[2] = 1; };
  const auto objective = [](const UnitPlan& plan) {
    EXPECT_EQ(plan[2], 1);
    return distance(plan);
  };
  EXPECT_EQ(parzen_search(units, objective, {.repair = repair}).value, 1);
}

}  // namespace
}  // namespace mantissa
