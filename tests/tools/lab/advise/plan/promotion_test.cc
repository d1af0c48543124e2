#include "tools/lab/advise/plan/promotion.h"

#include <gtest/gtest.h>

namespace mantissa::testing {
namespace {

PlanDecision decision(const std::string& name, double low_damage, double low_seconds) {
  return {.name = name,
          .options = {{.name = "fp32", .seconds = 1.0},
                      {.name = "bf16", .seconds = 0.5, .damage = low_damage / 10.0},
                      {.name = "fp8", .seconds = low_seconds, .damage = low_damage}}};
}

TEST(Promotion, GivesBackWhatWinsMostForItsTime) {
  // b does as much damage as a, and takes more time to make good.
  const PlanProblem problem{.decisions = {decision("a", 1.0, 0.4), decision("b", 1.0, 0.1), decision("c", 0.01, 0.4)}};
  const auto better = promoted(problem, {2, 2, 2});
  ASSERT_TRUE(better.has_value());
  // a to bf16 leaves 1.11 of 2.01: more than half. Then b.
  EXPECT_EQ(*better, (Plan{1, 1, 2}));
}

TEST(Promotion, KeepsGroupsTogether) {
  const PlanProblem problem{.decisions = {decision("a", 1.0, 0.4), decision("b", 0.5, 0.4), decision("c", 0.1, 0.1)},
                            .groups = {{0, 1}}};
  const auto better = promoted(problem, {2, 2, 2});
  ASSERT_TRUE(better.has_value());
  EXPECT_EQ(*better, (Plan{1, 1, 2}));
}

TEST(Promotion, HasNothingToGiveWhereThereIsNoDamage) {
  const PlanProblem problem{.decisions = {decision("a", 1.0, 0.4), decision("b", 0.0, 0.4)}};
  EXPECT_FALSE(promoted(problem, {0, 2}).has_value());
}

TEST(Promotion, ComesToAnEnd) {
  const PlanProblem problem{.decisions = {decision("a", 1.0, 0.4), decision("b", 2.0, 0.4)}};
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
