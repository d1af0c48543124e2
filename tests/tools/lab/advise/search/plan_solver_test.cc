// What holds for every solver, and how far each is from the optimum.

#include "tools/lab/advise/search/plan_solver.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "tests/testing/error_of.h"
#include "tests/tools/lab/advise/search/random_problems.h"

namespace mantissa {
namespace {

using testing::budgets_of;
using testing::error_of;
using testing::gap_to_optimum;
using testing::random_problem;
using testing::shuffled;

class EverySolver : public ::testing::TestWithParam<std::string_view> {
 protected:
  SearchResult solve(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings = {}) const {
    return make_plan_solver(GetParam(), settings)->solve(problem, goal);
  }
};
INSTANTIATE_TEST_SUITE_P(Solvers, EverySolver, ::testing::ValuesIn(plan_solver_names()),
                         [](const auto& info) { return std::string(info.param); });

// Of gap_to_optimum(). Solvers are deterministic, so that only a change moves their gaps. Measured over 393 budgets
// (mean, largest): greedy 0.0089 and 0.35, top_k 0.219 and 1, bayesian 0.0009 and 0.10, evolution 0 and 0; the bounds
// are twice that. Of top_k it is the mean that says something, and evolution has room to miss one budget in a hundred
// by a tenth. The two that claim to be exact have none.
struct Gaps {
  double mean;
  double largest;
};
Gaps gap_bound(std::string_view solver) {
  if (solver == "greedy") return {0.018, 0.7};
  if (solver == "top_k") return {0.44, 1.0};
  if (solver == "evolution") return {0.001, 0.1};
  if (solver == "bayesian") return {0.0018, 0.2};
  return {0, 0};
}

TEST_P(EverySolver, IsNotFurtherFromTheOptimumThanItsBound) {
  double sum = 0, largest = 0;
  int budgets = 0, optima = 0;
  for (uint64_t seed = 200; seed < 216; ++seed) {
    const PlanProblem problem = random_problem(seed, 6 + static_cast<int>(seed % 7));
    for (const PlanGoal& goal : budgets_of(problem, seed)) {
      const SearchResult found = solve(problem, goal);
      const auto gap = gap_to_optimum(problem, goal, found.totals);
      if (!gap) continue;
      ASSERT_TRUE(found.meets_budget);
      ASSERT_TRUE(goal.is_met(found.totals));
      ASSERT_GE(*gap, 0);
      sum += *gap;
      largest = std::max(largest, *gap);
      ++budgets;
      optima += *gap == 0;
    }
  }
  const double mean = sum / budgets;
  std::printf("%-12s gap: mean %.4f, largest %.4f, the optimum %d times of %d\n", std::string(GetParam()).c_str(), mean,
              largest, optima, budgets);
  EXPECT_GT(budgets, 300);
  EXPECT_LE(mean, gap_bound(GetParam()).mean);
  EXPECT_LE(largest, gap_bound(GetParam()).largest);
}

TEST_P(EverySolver, DoesNotDependOnTheOrderOfDecisions) {
  for (uint64_t seed = 300; seed < 306; ++seed) {
    const PlanProblem problem = random_problem(seed, 8);
    std::vector<int> place;
    const PlanProblem other = shuffled(problem, seed, place);
    for (const PlanGoal& goal : budgets_of(problem, seed)) {
      const SearchResult a = solve(problem, goal), b = solve(other, goal);
      for (size_t i = 0; i < place.size(); ++i) ASSERT_EQ(a.plan[i], b.plan[place[i]]) << "seed " << seed;
      ASSERT_EQ(a.totals.seconds, b.totals.seconds);
      ASSERT_EQ(a.totals.damage, b.totals.damage);
    }
  }
}

// All options alike: the first ones, by all.
TEST_P(EverySolver, TakesTheFirstOfEquals) {
  PlanProblem problem;
  for (int i = 0; i < 5; ++i) {
    const PlanOption same{.seconds = 1, .bytes = 1, .damage = 0.5};
    PlanDecision decision{.name = fmt::format("d{}", i), .options = {same, same, same}};
    for (int o = 0; o < 3; ++o) decision.options[o].name = fmt::format("f{}", o);
    problem.decisions.push_back(decision);
  }
  for (const Budget budget : {Budget::kTime, Budget::kMemory, Budget::kLoss}) {
    EXPECT_EQ(solve(problem, {.budget = budget, .limit = 5}).plan, Plan(5, 0));
    EXPECT_EQ(solve(problem, {.budget = budget, .limit = 1}).plan, Plan(5, 0));
  }
}

// One decision does a hundred times the damage of the others. Where the budget leaves room for one decision in its most
// exact option and hardly anything more, it is that one.
TEST_P(EverySolver, KeepsASensitiveDecisionHighUnderATightBudget) {
  for (int sensitive = 0; sensitive < 10; ++sensitive) {
    PlanProblem problem;
    for (int i = 0; i < 10; ++i) {
      const double factor = i == sensitive ? 100 : 1;
      problem.decisions.push_back({fmt::format("blocks.{}.mlp.up", i),
                                   {{.name = "fp32", .seconds = 4, .bytes = 4},
                                    {.name = "bf16", .seconds = 2, .bytes = 2, .damage = factor * (1 + 0.01 * i)},
                                    {.name = "fp8", .seconds = 1, .bytes = 1, .damage = factor * (4 + 0.01 * i)}}});
    }
    // 10 is what all of them in fp8 need; 13 has room for one in fp32.
    const Plan by_time = solve(problem, {.budget = Budget::kTime, .limit = 13.5}).plan;
    EXPECT_EQ(by_time[sensitive], 0) << "sensitive: " << sensitive;
    EXPECT_EQ(std::ranges::count(by_time, 0), 1);
    EXPECT_EQ(solve(problem, {.budget = Budget::kMemory, .limit = 13.5}).plan[sensitive], 0);
    EXPECT_EQ(solve(problem, {.budget = Budget::kLoss, .limit = 40}).plan[sensitive], 0);
  }
}

TEST_P(EverySolver, SaysThatABudgetCannotBeMetAndWhatIsNearest) {
  const PlanProblem problem{
      .decisions = {{"a", {{.name = "bf16", .seconds = 4e-3}, {.name = "fp8", .seconds = 2e-3, .damage = 0.5}}},
                    {"b",
                     {{.name = "bf16", .seconds = 4e-3},
                      {.name = "fp8", .seconds = 2e-3, .damage = 0.5},
                      {.name = "other", .seconds = 2e-3, .damage = 0.25}}}},
      .shared_costs = {{.name = "cast", .seconds = 1e-3, .payers = {{0, 1}, {1, 1}}}}};
  const PlanGoal goal{.budget = Budget::kTime, .limit = 3e-3};
  const SearchResult result = solve(problem, goal);
  EXPECT_FALSE(result.meets_budget);
  EXPECT_EQ(result.plan, (Plan{1, 2}));  // 2 + 2 + 1 ms, as fp8 for both; less damage
  const PlanGoal enough{.budget = Budget::kTime, .limit = 5e-3};
  EXPECT_TRUE(solve(problem, enough).meets_budget);
}

TEST_P(EverySolver, RefusesWhatIsNoNumber) {
  PlanProblem problem = random_problem(1, 4);
  problem.decisions[3].options[1].damage = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(error_of([&] { solve(problem, {.budget = Budget::kTime, .limit = 10}); }),
            "[plan] the damage of blocks.3.linear in format1 must be a finite number from 0 on, got nan; measure it "
            "again, or leave the option out");
  EXPECT_EQ(error_of([&] { solve(random_problem(1, 4), {.budget = Budget::kLoss, .limit = -1}); }),
            "[plan] a budget must be a finite number from 0 on, got -1; give seconds, bytes or nats");
}

TEST_P(EverySolver, GivesTheSamePlanForTheSameSeed) {
  const PlanProblem problem = random_problem(400, 10);
  for (const PlanGoal& goal : budgets_of(problem, 400)) {
    EXPECT_EQ(solve(problem, goal, {.seed = 5}).plan, solve(problem, goal, {.seed = 5}).plan);
  }
}

TEST(Enumeration, RefusesTooManyPlans) {
  const PlanProblem problem = random_problem(400, 30);
  EXPECT_EQ(error_of([&] { make_plan_solver("enumeration")->solve(problem, {.budget = Budget::kLoss, .limit = 1e3}); }),
            "[plan] 28 decisions have more than 4194304 plans together, too many to try them all; use the knapsack");
}

TEST(PlanSolver, KnowsItsNames) {
  for (const std::string_view name : plan_solver_names()) EXPECT_EQ(make_plan_solver(name)->name(), name);
  EXPECT_EQ(error_of([] { make_plan_solver("knapsac"); }),
            "[plan] a solver must be one of enumeration, knapsack, greedy, top_k, evolution, bayesian, got knapsac");
}

}  // namespace
}  // namespace mantissa
