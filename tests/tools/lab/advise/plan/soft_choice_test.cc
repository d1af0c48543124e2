#include "tools/lab/advise/plan/differentiable.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/tools/lab/advise/search/random_problems.h"
#include "tools/lab/advise/search/solver.h"

namespace mantissa::testing {
namespace {

constexpr int64_t kSteps = 200;

PlanDecision decision(const std::string& name, double damage) {
  return {.name = name,
          .options = {{.name = "fp32", .seconds = 4.0},
                      {.name = "bf16", .seconds = 2.0, .damage = damage / 16.0},
                      {.name = "fp8", .seconds = 1.0, .damage = damage}}};
}

PlanProblem problem() { return {decision("a", 1.0), decision("b", 0.1), decision("c", 0.02), decision("d", 0.3)}; }

std::vector<std::vector<double>> damages(const PlanProblem& problem) {
  std::vector<std::vector<double>> found;
  for (const PlanDecision& one : problem) {
    auto& options = found.emplace_back();
    for (const PlanOption& option : one.options) options.push_back(option.damage);
  }
  return found;
}

SoftChoice learnt(const PlanProblem& problem, double limit, uint64_t seed = 1) {
  SoftChoice soft(problem, {.budget = PlanQuantity::kSeconds, .limit = limit}, kSteps, seed);
  for (int64_t step = 0; step < kSteps; ++step) soft.learn(damages(problem));
  return soft;
}

TEST(SoftChoice, TakesTheMostExactWhereTimeDoesNotMatter) {
  EXPECT_EQ(learnt(problem(), 100.0).settle(), (Plan{0, 0, 0, 0}));
}

// Limits from 4 s, everything in 8 bits, to 16 s.
TEST(SoftChoice, MeetsBudgetsAndIsNotFarFromTheBest) {
  const PlanProblem numbers = problem();
  double largest = 0.0;
  for (double limit = 4.0; limit <= 16.0; limit += 0.5) {
    const PlanGoal goal{.budget = PlanQuantity::kSeconds, .limit = limit};
    const PlanTotals found = evaluate(numbers, learnt(numbers, limit).settle());
    const SearchResult best = solve("enumeration", numbers, goal);
    EXPECT_TRUE(goal.is_met(found)) << limit;
    const double gap = found.damage - best.totals.damage;
    EXPECT_GE(gap, -1e-12) << limit;
    largest = std::max(largest, gap);
  }
  RecordProperty("largest_gap", std::to_string(largest));
  // All in 8 bits: 1.42. Descent with a multiplier stops near the best plan if options are nearly as good.
  EXPECT_LT(largest, 0.15);
}

// Values of gap_to_optimum().
struct Gaps {
  double mean = 0.0, largest = 0.0;
  int budgets = 0;
};

// Learns the true damages for this many steps, for problems whose optimum is enumerated, as for the other solvers
// (solver_test.cc).
Gaps gaps_after(int64_t steps) {
  Gaps gaps;
  for (uint64_t seed = 200; seed < 208; ++seed) {
    const PlanProblem random = random_problem(seed, 5 + static_cast<int>(seed % 8));
    for (const PlanGoal& goal : budgets_of(random, seed)) {
      SoftChoice soft(random, goal, kSteps, 1);
      for (int64_t step = 0; step < steps; ++step) soft.learn(damages(random));
      const PlanTotals found = evaluate(random, soft.settle());
      const auto gap = gap_to_optimum(random, goal, found);
      if (!gap) continue;
      EXPECT_TRUE(goal.is_met(found)) << seed;
      EXPECT_GE(*gap, 0.0);
      gaps.mean += *gap;
      gaps.largest = std::max(gaps.largest, *gap);
      ++gaps.budgets;
    }
  }
  gaps.mean /= gaps.budgets;
  return gaps;
}

// Measured over 296 budgets: mean 0.0109, largest 0.42; mean after a single step 0.0189. The first two bounds are about
// twice the first two values, as for other solvers. The rest of the budget is spent by the learned damages, even after
// a single step. The last bound shows that further steps help.
TEST(SoftChoice, IsNotFurtherFromTheOptimumThanItsBound) {
  const Gaps learnt = gaps_after(kSteps), begun = gaps_after(1);
  std::printf("differentiable gap: mean %.4f, largest %.4f of %d budgets; after one step mean %.4f\n", learnt.mean,
              learnt.largest, learnt.budgets, begun.mean);
  EXPECT_GT(learnt.budgets, 150);
  EXPECT_LE(learnt.mean, 0.024);
  EXPECT_LE(learnt.largest, 0.84);
  EXPECT_LT(learnt.mean, 0.8 * begun.mean);
}

TEST(SoftChoice, LearnsWhatItIsToldAndNotWhatTheProblemPredicted) {
  const PlanProblem numbers = problem();
  SoftChoice soft(numbers, {.budget = PlanQuantity::kSeconds, .limit = 100.0}, kSteps, 1);
  for (int64_t step = 0; step < kSteps; ++step) {
    auto losses = damages(numbers);
    losses[1] = {0.5, 0.25, 0.0};  // b is better in 8 bits
    soft.learn(losses);
  }
  EXPECT_EQ(soft.settle(), (Plan{0, 2, 0, 0}));
}

// The budget limits measured losses. Predictions only matter at the end, when the plan must meet them, too.
TEST(SoftChoice, ALossBudgetLimitsWhatIsMeasured) {
  const PlanProblem numbers = problem();
  const PlanGoal goal{.budget = PlanQuantity::kDamage, .limit = 0.5};
  const auto settled = [&](double damage_of_b, double beyond) {
    SoftChoice soft(numbers, goal, kSteps, 1);
    auto measured = damages(numbers);
    measured[1] = {0.0, damage_of_b / 16.0, damage_of_b};
    for (int64_t step = 0; step < kSteps; ++step) soft.learn(measured, beyond);
    return soft.settle();
  };
  const Plan predicted = settled(0.1, 0.0);
  EXPECT_EQ(predicted, (Plan{1, 2, 2, 2})) << "as it was predicted: 0.48 of 0.5";
  EXPECT_EQ(solve("enumeration", numbers, goal).plan, predicted);
  EXPECT_LT(settled(5.0, 0.0)[1], 2) << "b in 8 bits alone exceeds the limit";
  const PlanTotals left = evaluate(numbers, settled(0.1, 0.3));
  EXPECT_LE(left.damage, 0.2) << "plans do 0.3 beyond the sum of their options";
}

TEST(SoftChoice, ALossBudgetOfNothingTakesWhatDoesNothing) {
  SoftChoice soft(problem(), {.budget = PlanQuantity::kDamage, .limit = 0.0}, kSteps, 1);
  for (int64_t step = 0; step < kSteps; ++step) soft.learn(damages(problem()));
  for (const std::vector<double>& options : soft.probabilities()) EXPECT_GT(options[0], 0.9);
}

TEST(SoftChoice, DrawsByItsProbabilitiesAndTheSameInEveryRun) {
  const PlanProblem numbers = problem();
  SoftChoice soft(numbers, {.budget = PlanQuantity::kSeconds, .limit = 100.0}, 1000, 5);
  SoftChoice again(numbers, {.budget = PlanQuantity::kSeconds, .limit = 100.0}, 1000, 5);
  const std::vector<std::vector<double>> nothing(4, std::vector<double>(3, 0.0));
  int counts[3] = {};
  for (int step = 0; step < 900; ++step) {
    const Plan plan = soft.draw();
    EXPECT_EQ(plan, again.draw());
    for (const int option : plan) ++counts[option];
    soft.learn(nothing);
    again.learn(nothing);
  }
  // Nothing was learned: 3600 draws with probability 1/3 have a deviation of 28.
  for (const int count : counts) EXPECT_NEAR(count, 1200, 4 * 28);
}

TEST(SoftChoice, SaysWhereNothingMeetsTheBudget) {
  EXPECT_EQ(learnt(problem(), 1.0).settle(), (Plan{2, 2, 2, 2})) << "the minimum";
}

}  // namespace
}  // namespace mantissa::testing
