#include "tools/lab/advise/search/plan_problem.h"

#include <gtest/gtest.h>

#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

using testing::error_of;

PlanProblem three_decisions() {
  return {
      .decisions = {{"q",
                     {{.name = "bf16", .seconds = 2, .bytes = 20, .damage_error = 3},
                      {.name = "fp8", .seconds = 1, .bytes = 10, .damage = 0.5, .damage_error = 3}}},
                    {"k",
                     {{.name = "bf16", .seconds = 2, .bytes = 20},
                      {.name = "fp8", .seconds = 1, .bytes = 10, .damage = 0.25, .damage_error = 4}}},
                    {"up", {{.name = "bf16", .seconds = 8, .bytes = 80}, {.name = "fp8", .seconds = 4, .bytes = 40}}}},
      .groups = {{0, 1}},
      .shared_costs = {{.name = "cast", .seconds = 0.5, .bytes = 5, .payers = {{0, 1}, {1, 1}, {2, 1}}}}};
}

TEST(PlanProblem, AddsUpAndPaysASharedCostOnce) {
  const PlanProblem problem = three_decisions();
  const PlanTotals exact = evaluate(problem, {0, 0, 0});
  EXPECT_EQ(exact.seconds, 12);
  EXPECT_EQ(exact.bytes, 120);
  EXPECT_EQ(exact.damage, 0);
  EXPECT_EQ(exact.damage_error(), 3);
  const PlanTotals one_pays = evaluate(problem, {0, 0, 1}), all_pay = evaluate(problem, {1, 1, 1});
  EXPECT_EQ(one_pays.seconds, 2 + 2 + 4 + 0.5);
  EXPECT_EQ(all_pay.seconds, 1 + 1 + 4 + 0.5);
  EXPECT_EQ(all_pay.bytes, 10 + 10 + 40 + 5);
  EXPECT_EQ(all_pay.damage, 0.75);
  EXPECT_EQ(all_pay.damage_error(), 5);
}

TEST(PlanProblem, RanksByExcessThenByWhatIsToBeLeast) {
  const PlanTotals totals{.seconds = 2, .bytes = 3, .damage = 5};
  using Rank = std::array<double, 4>;
  EXPECT_EQ(rank({.budget = Budget::kTime, .limit = 2}, totals), (Rank{0, 5, 2, 3}));
  EXPECT_EQ(rank({.budget = Budget::kTime, .limit = 1.5}, totals), (Rank{0.5, 5, 2, 3}));
  EXPECT_EQ(rank({.budget = Budget::kMemory, .limit = 4}, totals), (Rank{0, 5, 3, 2}));
  EXPECT_EQ(rank({.budget = Budget::kLoss, .limit = 4}, totals), (Rank{1, 2, 5, 3}));
}

// A budget that was made by adding the same numbers in another order is met.
TEST(PlanProblem, ToleratesTheRoundingOfSums) {
  const PlanGoal goal{.budget = Budget::kTime, .limit = 0.3};
  EXPECT_TRUE(goal.is_met({.seconds = 0.1 + 0.2}));
  EXPECT_FALSE(goal.is_met({.seconds = 0.3 + 1e-11}));
}

template <typename F>
std::string error_with(const F& change) {
  PlanProblem problem = three_decisions();
  change(problem);
  return error_of([&] { check_problem(problem); });
}

TEST(PlanProblem, NamesWhatIsWrongWithIt) {
  EXPECT_EQ(error_of([] { check_problem({}); }), "[plan] there must be at least one decision, got none");
  EXPECT_EQ(error_with([](PlanProblem& p) { p.decisions[1].name = "q"; }),
            "[plan] there are two decisions q; give them different names");
  EXPECT_EQ(error_with([](PlanProblem& p) { p.decisions[2].options.clear(); }),
            "[plan] up must have at least one option, got none");
  EXPECT_EQ(error_with([](PlanProblem& p) { p.decisions[2].options[1].name = "bf16"; }),
            "[plan] up has the option bf16 twice; give options different names");
  EXPECT_EQ(error_with([](PlanProblem& p) { p.decisions[2].options[1].seconds = -1; }),
            "[plan] the seconds of up in fp8 must be a finite number from 0 on, got -1; measure it again, or leave the "
            "option out");
  EXPECT_EQ(error_with([](PlanProblem& p) { p.decisions[1].options[1].name = "fp16"; }),
            "[plan] q and k are a group and must have options of the same names in the same order; list for both what "
            "both can take");
  EXPECT_EQ(error_with([](PlanProblem& p) { p.groups[0][1] = 3; }),
            "[plan] a group names decision 3, but there are 3, counted from 0");
  EXPECT_EQ(error_with([](PlanProblem& p) { p.shared_costs[0].payers[0].option = 2; }),
            "[plan] cast names option 2 of q, which has 2, counted from 0");
  EXPECT_EQ(error_with([](PlanProblem& p) { p.shared_costs.push_back(p.shared_costs[0]); }),
            "[plan] there are two shared costs cast; give them different names");
}

TEST(PlanProblem, RefusesPlansThatItCannotHave) {
  const PlanProblem problem = three_decisions();
  EXPECT_EQ(error_of([&] {
              evaluate(problem, {0, 0});
            }),
            "[plan] a plan must have an option for each of 3 decisions, got 2");
  EXPECT_EQ(error_of([&] {
              evaluate(problem, {0, 0, 2});
            }),
            "[plan] up has 2 options, counted from 0; the plan takes 2");
  EXPECT_EQ(error_of([&] {
              evaluate(problem, {0, 1, 0});
            }),
            "[plan] q and k must take the same option, the plan has 0 and 1");
}

}  // namespace
}  // namespace mantissa
