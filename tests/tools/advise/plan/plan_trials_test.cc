// What becomes of a plan by what its training is said to have shown.
#include "tools/advise/plan/plan_trials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/tools/advise/plan/planted_advice.h"

namespace mantissa::testing {
namespace {

PlanValidation against(ReferenceResult low) { return {.seeds = 3, .against = {std::move(low)}}; }

ReferenceResult learns(ComparisonVerdict verdict) { return {.name = "bf16", .loss_verdict = verdict}; }

class PlanTrials : public PlantedAdvice {
 protected:
  // Tries the plan; the n-th trial is said to have had the n-th outcome, and all behind the last the last.
  PlanAdvice try_with(PlanAdvice advice, const std::vector<ReferenceResult>& outcomes) {
    const auto train = [&](const Config& config) {
      tried_.push_back(to_yaml(config));
      return against(outcomes[std::min(tried_.size(), outcomes.size()) - 1]);
    };
    try_plan(train, model_.config, target_, 1, advice);
    EXPECT_EQ(tried_.back(), to_yaml(advice.config)) << "what was validated is the plan";
    return advice;
  }

  std::vector<std::string> tried_;  // configurations
};

TEST_F(PlanTrials, APlanThatIsNotWorseStays) {
  const PlanAdvice advice = plan("time=60%"), tried = try_with(advice, {learns(ComparisonVerdict::kInconclusive)});
  EXPECT_EQ(tried_.size(), 1u);
  EXPECT_EQ(tried.chosen.plan, advice.chosen.plan);
  EXPECT_EQ(tried.promotions, 0);
}

TEST_F(PlanTrials, APlanThatLearnsWorseGivesBackWhatDoesDamage) {
  const PlanAdvice advice = plan("time=60%");
  ASSERT_GT(advice.chosen.totals.damage, 0.0);
  const PlanAdvice tried = try_with(advice, {learns(ComparisonVerdict::kWorse), learns(ComparisonVerdict::kEqual)});
  EXPECT_EQ(tried.promotions, 1);
  EXPECT_EQ(tried_.size(), 2u);
  EXPECT_LE(tried.chosen.totals.damage, advice.chosen.totals.damage / 2.0);
  EXPECT_NE(to_text(tried).find("given options back, 1 times"), std::string::npos) << to_text(tried);
}

TEST_F(PlanTrials, GivesBackSoOftenAndNoMore) {
  const PlanAdvice tried = try_with(plan("time=60%"), {learns(ComparisonVerdict::kWorse)});
  EXPECT_LE(tried.promotions, kMostPromotions);
  EXPECT_GT(tried.promotions, 0);
  EXPECT_EQ(static_cast<int>(tried_.size()), tried.promotions + 1);
}

TEST_F(PlanTrials, APlanThatIsMeasuredSlowerGivesWayTo16Bits) {
  const PlanAdvice tried = try_with(plan("time=100%"), {measured_at(1.1), measured_at(1.0)});
  for (const PlannedLayer& layer : tried.layers) EXPECT_EQ(choice(tried, tried.chosen.plan, layer.name()), "bf16");
  ASSERT_TRUE(tried.slower.has_value());
  EXPECT_EQ(tried_.size(), 2u);
  EXPECT_EQ(tried.promotions, 0);
  EXPECT_NE(to_text(tried).find("measured at 1.100"), std::string::npos) << to_text(tried);
}

TEST_F(PlanTrials, WhatIsSlowerWhere16BitsDoNotMeetTheBudgetIsSaid) {
  const PlanAdvice advice = plan("time=60%"), tried = try_with(advice, {measured_at(1.1)});
  EXPECT_EQ(tried.chosen.plan, advice.chosen.plan);
  EXPECT_FALSE(tried.slower.has_value());
  EXPECT_EQ(tried_.size(), 1u);
  EXPECT_NE(to_text(tried).find("slower than bf16 throughout, and not what the budget asks for"), std::string::npos)
      << to_text(tried);
}

}  // namespace
}  // namespace mantissa::testing
