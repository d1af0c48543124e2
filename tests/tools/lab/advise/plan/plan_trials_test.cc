// What becomes of a plan by what its training is said to have shown.
#include "tools/lab/advise/plan/plan_trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/tools/lab/advise/plan/planted_advice.h"

namespace mantissa::testing {
namespace {

// Of a plan beside 16 bits and fp32.
struct Outcome {
  ReferenceResult low{.name = "bf16"};
  double above_fp32 = 0.0;  // nats, +- 0.01
};

PlanValidation validation_of(const Outcome& outcome) {
  const MeanDifference loss{.pairs = 3,
                            .mean = outcome.above_fp32,
                            .interval = Interval{outcome.above_fp32 - 0.01, outcome.above_fp32 + 0.01}};
  return {.seeds = 3, .against = {outcome.low, {.name = "fp32", .loss = loss}}};
}

Outcome worse_than_16_bits(double above_fp32) {
  return {.low = {.name = "bf16", .loss_verdict = ComparisonVerdict::kWorse}, .above_fp32 = above_fp32};
}

class PlanTrials : public PlantedAdvice {
 protected:
  // Tries the plan; the n-th trial is said to have had the n-th outcome, and all behind the last the last.
  PlanAdvice try_with(PlanAdvice advice, const std::vector<Outcome>& outcomes) {
    const auto train = [&](const Config& config) {
      tried_.push_back(to_yaml(config));
      return validation_of(outcomes[std::min(tried_.size(), outcomes.size()) - 1]);
    };
    try_plan(train, model_.config, target_, 1, advice);
    EXPECT_EQ(tried_.back(), to_yaml(advice.config)) << "what was validated is the plan";
    return advice;
  }

  std::vector<std::string> tried_;  // configurations
};

constexpr double kMuch = 1.0;  // nats, more than any plan below promises

TEST_F(PlanTrials, APlanThatKeepsItsPromiseStaysEvenWhereItIsWorseThan16Bits) {
  const PlanAdvice advice = plan("time=60%"), tried = try_with(advice, {worse_than_16_bits(0.0)});
  EXPECT_EQ(tried_.size(), 1u);
  EXPECT_EQ(tried.chosen.plan, advice.chosen.plan);
  EXPECT_EQ(tried.promotions, 0);
  EXPECT_NE(to_text(tried).find(": kept"), std::string::npos) << to_text(tried);
}

TEST_F(PlanTrials, APlanThatBreaksItsPromiseGivesBackWhatDoesDamage) {
  const PlanAdvice advice = plan("time=60%");
  ASSERT_GT(advice.chosen.totals.damage, 0.0);
  const PlanAdvice tried = try_with(advice, {{.above_fp32 = kMuch}, {.above_fp32 = 0.0}});
  EXPECT_EQ(tried.promotions, 1);
  EXPECT_EQ(tried_.size(), 2u);
  EXPECT_LE(tried.chosen.totals.damage, advice.chosen.totals.damage / 2.0);
  EXPECT_NE(to_text(tried).find("given options back, 1 times"), std::string::npos) << to_text(tried);
}

TEST_F(PlanTrials, GivesBackSoOftenAndNoMore) {
  const PlanAdvice tried = try_with(plan("time=60%"), {{.above_fp32 = kMuch}});
  EXPECT_LE(tried.promotions, kMostPromotions);
  EXPECT_GT(tried.promotions, 0);
  EXPECT_EQ(static_cast<int>(tried_.size()), tried.promotions + 1);
  EXPECT_NE(to_text(tried).find("not kept"), std::string::npos) << to_text(tried);
}

// With a seed that 16 bits fail with as well.
TEST_F(PlanTrials, APlanThatFailsWhereFp32ComesThroughGivesBack) {
  PlanAdvice advice = plan("time=60%");
  const auto train = [&](const Config& config) {
    tried_.push_back(to_yaml(config));
    if (tried_.size() > 1) return validation_of({.above_fp32 = 0.0});
    return PlanValidation{.seeds = 1,
                          .failure = "a loss that is not finite",
                          .against = {{.name = "bf16"}, {.name = "fp32", .loss_verdict = ComparisonVerdict::kWorse}}};
  };
  try_plan(train, model_.config, target_, 1, advice);
  EXPECT_EQ(advice.promotions, 1);
  EXPECT_EQ(tried_.size(), 2u);
}

TEST_F(PlanTrials, GivesNothingBackThatTheDeviceHasNoMemoryFor) {
  PlanAdvice advice = plan("time=60%");
  const PlanAdvice unlimited = try_with(advice, {{.above_fp32 = kMuch}});
  Target small = target_;
  small.memory_bytes = advice.plan.cost.bytes;
  ASSERT_GT(unlimited.plan.cost.bytes, small.memory_bytes) << "else nothing is to be refused";
  take_plan(advice, advice.chosen.plan, model_.config, small, 1);
  try_plan([&](const Config&) { return validation_of({.above_fp32 = kMuch}); }, model_.config, small, 1, advice);
  EXPECT_TRUE(advice.plan.cost.fits()) << to_text(advice);
  EXPECT_LT(advice.promotions, unlimited.promotions);
}

TEST_F(PlanTrials, APlanThatIsSlowerOrWorseGivesWayTo16BitsThatMeetTheBudget) {
  for (const Outcome& outcome : {Outcome{.low = measured_at(1.1)}, worse_than_16_bits(0.0)}) {
    tried_.clear();
    const PlanAdvice tried = try_with(plan("time=100%"), {outcome, {.low = measured_at(1.0)}});
    for (const PlannedPlace& layer : tried.places) EXPECT_EQ(choice(tried, tried.chosen.plan, layer.name()), "bf16");
    EXPECT_TRUE(tried.gave_way.has_value());
    EXPECT_EQ(tried_.size(), 2u);
    EXPECT_EQ(tried.promotions, 0);
    EXPECT_NE(to_text(tried).find("did worse than bf16 throughout"), std::string::npos) << to_text(tried);
  }
}

TEST_F(PlanTrials, WhatIsSlowerWhere16BitsDoNotMeetTheBudgetIsSaid) {
  const PlanAdvice advice = plan("time=60%"), tried = try_with(advice, {{.low = measured_at(1.1)}});
  EXPECT_EQ(tried.chosen.plan, advice.chosen.plan);
  EXPECT_FALSE(tried.gave_way.has_value());
  EXPECT_EQ(tried_.size(), 1u);
  EXPECT_NE(to_text(tried).find("slower than bf16 throughout, and not what the budget asks for"), std::string::npos)
      << to_text(tried);
}

}  // namespace
}  // namespace mantissa::testing
