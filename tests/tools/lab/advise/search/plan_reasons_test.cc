#include "tools/lab/advise/search/plan_reasons.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

using Lines = std::vector<std::string>;

TEST(PlanReasons, SayWhatAnOptionSavesAndCostsAndWhatWouldComeNext) {
  const PlanProblem problem{.decisions = {{"up",
                                           {{.name = "fp32", .seconds = 8e-3},
                                            {.name = "bf16", .seconds = 4e-3, .damage = 1e-4},
                                            {.name = "fp8", .seconds = 2e-3, .damage = 4e-4}}},
                                          {"head",
                                           {{.name = "fp32", .seconds = 8e-3},
                                            {.name = "bf16", .seconds = 6e-3, .damage = 0.02},
                                            {.name = "fp8", .seconds = 5e-3, .damage = 0.5}}},
                                          {"norm", {{.name = "fp32", .seconds = 1e-3}}}}};
  const Plan plan{2, 0, 0};
  EXPECT_EQ(plan_reasons(problem, {.budget = Budget::kTime, .limit = 14e-3}, plan),
            (Lines{"fp8: saves 6 ms (35.3 %) against fp32, costs 0.0004 nats; bf16 instead: +2 ms, -0.0003 nats",
                   "kept fp32: bf16 would cost 0.02 nats for 2 ms", "kept fp32: nothing here saves time"}));
  EXPECT_EQ(plan_reasons(problem, {.budget = Budget::kTime, .limit = 12e-3}, plan)[0],
            "fp8: saves 6 ms (35.3 %) against fp32, costs 0.0004 nats; bf16 instead would exceed the budget by 1 ms");
  EXPECT_EQ(plan_reasons(problem, {.budget = Budget::kMemory, .limit = 0}, plan)[1],
            "kept fp32: nothing here saves memory");
}

TEST(PlanReasons, NameWhoDecidesAndPaysTogether) {
  const PlanProblem problem{
      .decisions = {{"q", {{.name = "bf16", .seconds = 2e-3}, {.name = "fp8", .seconds = 1e-3, .damage = 0.25}}},
                    {"k", {{.name = "bf16", .seconds = 2e-3}, {.name = "fp8", .seconds = 1e-3, .damage = 0.25}}},
                    {"wgrad", {{.name = "bf16", .seconds = 4e-3}, {.name = "fp8", .seconds = 2e-3, .damage = 0.125}}}},
      .groups = {{0, 1}},
      .shared_costs = {{.name = "the cast of x", .seconds = 0.4e-3, .payers = {{0, 1}, {1, 1}, {2, 1}}}}};
  // The cast is paid by the other as well: each alone saves all of its time.
  EXPECT_EQ(plan_reasons(problem, {.budget = Budget::kTime, .limit = 5e-3}, {1, 1, 1}),
            (Lines{"fp8: saves 2 ms (25.0 %) against bf16, costs 0.5 nats; bf16 instead would exceed the budget by 1.4 "
                   "ms; one choice with k; shares the cast of x with k, wgrad",
                   "fp8: saves 2 ms (25.0 %) against bf16, costs 0.5 nats; bf16 instead would exceed the budget by 1.4 "
                   "ms; one choice with q; shares the cast of x with q, wgrad",
                   "fp8: saves 2 ms (25.0 %) against bf16, costs 0.12 nats; bf16 instead would exceed the budget by "
                   "1.4 ms; shares the cast of x with k, q"}));
  // Alone it pays for the cast.
  EXPECT_EQ(plan_reasons(problem, {.budget = Budget::kTime, .limit = 8e-3}, {0, 0, 1})[2],
            "fp8: saves 1.6 ms (20.0 %) against bf16, costs 0.12 nats; bf16 instead: +1.6 ms, -0.12 nats");
}

}  // namespace
}  // namespace mantissa
