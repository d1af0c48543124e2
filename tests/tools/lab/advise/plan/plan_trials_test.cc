// Trials of plans: reasons to keep or change a plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/tools/lab/advise/plan/planted_advice.h"
#include "tools/lab/advise/plan/plan_advice.h"

namespace mantissa::testing {
namespace {

// The result of a plan against 16 bits and fp32.
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
  // Tries the plan. The n-th trial gets the n-th outcome; all trials after the last get the last.
  PlanAdvice try_with(PlanAdvice advice, const std::vector<Outcome>& outcomes) {
    const auto train = [&](const Config& config) {
      tried_.push_back(to_yaml(config));
      return validation_of(outcomes[std::min(tried_.size(), outcomes.size()) - 1]);
    };
    try_plan(train, advice);
    EXPECT_EQ(tried_.back(), to_yaml(advice.config)) << "what was validated is the plan";
    return advice;
  }

  std::vector<std::string> tried_;  // configurations
};

constexpr double kMuch = 1.0;  // nats, more than any plan below promises

TEST_F(PlanTrials, APlanThatKeepsItsPromiseStaysEvenWhereItIsWorseThan16Bits) {
  const PlanAdvice advice = plan("time=60%"), tried = try_with(advice, {worse_than_16_bits(-kMuch)});
  EXPECT_EQ(tried_.size(), 1u);
  EXPECT_EQ(tried.plan.choice, advice.plan.choice);
  EXPECT_EQ(tried.promotions(), 0);
  const std::string verdict = to_json(tried)["verdict"];
  EXPECT_NE(verdict.find(" nats: kept\n"), std::string::npos) << verdict;
}

TEST_F(PlanTrials, RunsThatTellLessApartThanThePromiseDoNotTestIt) {
  const PlanAdvice advice = plan("time=60%");
  const std::string text = to_json(try_with(advice, {{.above_fp32 = advice.promised_to_runs()}}))["verdict"];
  EXPECT_NE(text.find(" nats: not tested, since these runs tell losses apart by no less than 0.01"), std::string::npos)
      << text;
  EXPECT_EQ(text.find(" nats: kept"), std::string::npos) << text;
}

TEST_F(PlanTrials, RunsThatAreTooShortKeepNeitherAPromiseNorABudgetOfLoss) {
  PlanAdvice advice = plan("loss=10");
  advice.validation = validation_of({.above_fp32 = -kMuch});
  EXPECT_TRUE(advice.meets_surely());
  advice.validation->against[1].why = "too few steps to tell: give more steps";
  EXPECT_FALSE(advice.meets_surely());
  EXPECT_FALSE(advice.misses_budget());
  const std::string text = to_json(advice)["verdict"];
  EXPECT_NE(text.find("; too few steps to tell: give more steps; promised "), std::string::npos) << text;
  EXPECT_NE(text.find(" nats: not tested, since the runs are too short to tell\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" by one step, not shown by training"), std::string::npos) << text;
  advice.validation->against[1].loss_verdict = ComparisonVerdict::kWorse;
  const std::string worse = to_json(advice)["verdict"];
  EXPECT_EQ(worse.find("too few steps to tell"), std::string::npos) << "longer runs are not asked for: " << worse;
  EXPECT_NE(worse.find("not tested, since the runs are too short"), std::string::npos) << worse;
}

TEST_F(PlanTrials, APlanThatBreaksItsPromiseGivesBackWhatDoesDamage) {
  const PlanAdvice advice = plan("time=60%");
  ASSERT_GT(evaluate(advice.problem, advice.plan.choice).damage, 0.0);
  const PlanAdvice tried = try_with(advice, {{.above_fp32 = kMuch}, {.above_fp32 = 0.0}});
  EXPECT_EQ(tried.promotions(), 1);
  EXPECT_EQ(tried_.size(), 2u);
  EXPECT_LE(evaluate(tried.problem, tried.plan.choice).damage,
            evaluate(advice.problem, advice.plan.choice).damage / 2.0);
  EXPECT_NE(text_of(tried).find("Try 1, given up: loss +1.00"), std::string::npos) << text_of(tried);
}

TEST_F(PlanTrials, GivesBackSoOftenAndNoMore) {
  const PlanAdvice tried = try_with(plan("time=60%"), {{.above_fp32 = kMuch}});
  EXPECT_LE(tried.promotions(), kMostPromotions);
  EXPECT_GT(tried.promotions(), 0);
  EXPECT_EQ(static_cast<int>(tried_.size()), tried.promotions() + 1);
  EXPECT_NE(text_of(tried).find("not kept"), std::string::npos) << text_of(tried);
}

// The failing seed fails in 16 bits, too.
TEST_F(PlanTrials, APlanThatFailsWhereFp32ComesThroughGivesBack) {
  PlanAdvice advice = plan("time=60%");
  const auto train = [&](const Config& config) {
    tried_.push_back(to_yaml(config));
    if (tried_.size() > 1) return validation_of({.above_fp32 = 0.0});
    return PlanValidation{.seeds = 1,
                          .failure = "a loss that is not finite",
                          .against = {{.name = "bf16"}, {.name = "fp32", .loss_verdict = ComparisonVerdict::kWorse}}};
  };
  try_plan(train, advice);
  EXPECT_EQ(advice.promotions(), 1);
  EXPECT_EQ(tried_.size(), 2u);
}

// As the plan of runs, and as a reference beside another plan.
TEST_F(PlanTrials, RunsThatBreakABudgetOfLossCountMoreThanThePrediction) {
  PlanAdvice advice = plan("loss=10");
  ASSERT_NE(advice.plan.choice, advice.uniform[1].choice);
  const MeanDifference much{.pairs = 3, .mean = 11.0, .interval = Interval{10.5, 11.5}};
  advice.validation = PlanValidation{.against = {{.name = "bf16"}, {.name = "fp32"}}, .low_loss = much};
  EXPECT_EQ(to_json(advice)["uniform"][1]["budget"], "broken by the runs: +11.00 ±0.50 nats");
  EXPECT_EQ(to_json(advice)["uniform"][1]["meets_budget"], false);
  EXPECT_EQ(to_json(advice)["plan"]["budget"], "met") << "no pair of its runs succeeded";
  advice.take(advice.uniform[1].choice);
  ASSERT_GT(evaluate(advice.problem, advice.plan.choice).damage, 0.0);
  const PlanAdvice tried = try_with(advice, {{.above_fp32 = 11.0}, {.above_fp32 = 0.0}});
  ASSERT_EQ(tried.promotions(), 1);
  const Json json = to_json(tried);
  EXPECT_EQ(json["uniform"][0]["budget"], "met");
  EXPECT_EQ(json["uniform"][1]["meets_budget"], false);
  EXPECT_TRUE(json["uniform"][1]["budget"].get<std::string>().starts_with("broken by the runs: +11.00")) << json;
  EXPECT_TRUE(json["plan"]["budget"].get<std::string>().starts_with("met, in the runs: +0.00")) << json;
  EXPECT_NE(text_of(tried).find("broken by the runs: +11.00"), std::string::npos) << text_of(tried);
}

TEST_F(PlanTrials, TheReportKeepsWhatWasGivenBackAndWhy) {
  PlanAdvice advice = plan("loss=10");
  advice.take(advice.uniform[1].choice);
  const PlanAdvice tried = try_with(advice, {{.above_fp32 = 11.0}, {.above_fp32 = 0.0}});
  ASSERT_EQ(tried.earlier.size(), 1u);
  const Json json = to_json(tried), &before = json["tried"][0];
  EXPECT_EQ(before["choices"], to_json(advice)["choices"]);
  EXPECT_EQ(before["validation"]["against"]["fp32"]["loss"]["mean"], 11.0);
  EXPECT_EQ(before["promised"], advice.promised_to_runs());
  int given_back = 0;
  for (const Json& place : json["places"]) {
    const std::string name = place["name"], was = before["choices"][name];
    const bool changes = json["choices"][name] != was;
    given_back += changes;
    EXPECT_EQ(place["reason"].get<std::string>().ends_with("; was " + was + " in try 1"), changes) << place;
  }
  EXPECT_GT(given_back, 0);
  for (const std::string& text : {text_of(tried), to_plan_yaml(tried, "a model")}) {
    EXPECT_NE(text.find("Try 1, given up: loss +11.0"), std::string::npos) << text;
    EXPECT_NE(text.find("; was bf16 in try 1"), std::string::npos) << text;
  }
}

TEST_F(PlanTrials, GivesNothingBackThatTheDeviceHasNoMemoryFor) {
  PlanAdvice advice = plan("time=60%");
  const PlanAdvice unlimited = try_with(advice, {{.above_fp32 = kMuch}});
  advice.target.memory_bytes = advice.plan.cost.bytes;
  ASSERT_GT(unlimited.plan.cost.bytes, advice.target.memory_bytes) << "otherwise memory would limit nothing";
  advice.take(advice.plan.choice);
  try_plan([&](const Config&) { return validation_of({.above_fp32 = kMuch}); }, advice);
  EXPECT_TRUE(advice.plan.cost.fits()) << text_of(advice);
  EXPECT_LT(advice.promotions(), unlimited.promotions());
}

TEST_F(PlanTrials, APlanThatIsSlowerOrWorseGivesWayTo16BitsThatMeetTheBudget) {
  for (const Outcome& outcome : {Outcome{.low = measured_at(1.1)}, worse_than_16_bits(0.0)}) {
    tried_.clear();
    const PlanAdvice tried = try_with(plan("time=100%"), {outcome, {.low = measured_at(1.0)}});
    for (const PlannedPlace& layer : tried.places) EXPECT_EQ(choice(tried, tried.plan.choice, layer.name()), "bf16");
    EXPECT_TRUE(tried.gave_way.has_value());
    EXPECT_EQ(tried_.size(), 2u);
    EXPECT_EQ(tried.promotions(), 0);
    EXPECT_NE(text_of(tried).find("did worse than bf16 throughout"), std::string::npos) << text_of(tried);
  }
}

TEST_F(PlanTrials, WhatIsSlowerWhere16BitsDoNotMeetTheBudgetIsSaid) {
  const PlanAdvice advice = plan("time=60%"), tried = try_with(advice, {{.low = measured_at(1.1)}});
  EXPECT_EQ(tried.plan.choice, advice.plan.choice);
  EXPECT_FALSE(tried.gave_way.has_value());
  EXPECT_EQ(tried_.size(), 1u);
  EXPECT_NE(text_of(tried).find("By the measured ratio to bf16, a step takes "), std::string::npos) << text_of(tried);
  EXPECT_NE(text_of(tried).find(": the budget of " + to_text(PlanQuantity::kSeconds, tried.goal.limit) + " is missed."),
            std::string::npos)
      << text_of(tried);
  const PlanAdvice slow = try_with(plan("loss=1e-9"), {{.low = measured_at(1.1)}});
  EXPECT_NE(text_of(slow).find("slower than bf16 throughout, and not what the budget asks for"), std::string::npos)
      << text_of(slow);
}

TEST_F(PlanTrials, TheBudgetIsThatOfTheWholeStepAndOfMeasuredTimes) {
  PlanAdvice advice = plan("time=60%");
  const auto verdict_of = [&] { return to_json(advice).at("verdict").get<std::string>(); };
  advice.common.seconds *= 0.5;  // as if parts saved more than the whole
  const double parts = advice.limited_in_parts(advice.plan.choice), whole = advice.plan.cost.seconds;
  ASSERT_LT(parts, 0.9 * whole);
  Json budget = to_json(advice).at("budget");
  EXPECT_EQ(budget.at("predicted"), whole);
  EXPECT_EQ(budget.at("parts"), parts);
  EXPECT_TRUE(budget.at("measured").is_null());
  EXPECT_NE(
      verdict_of().find(fmt::format("predicted at {}; its parts alone, as below, add up to {}.",
                                    to_text(PlanQuantity::kSeconds, whole), to_text(PlanQuantity::kSeconds, parts))),
      std::string::npos)
      << verdict_of();
  EXPECT_NE(text_of(advice).find("missed"), std::string::npos) << "bf16 throughout\n" << text_of(advice);
  const struct {
    double ratio;
    bool is_missed, is_sure;
    const char* said;
  } cases[] = {{0.9, true, false, " is missed.\n"},
               {0.605, false, false, " is met as far as"},
               {0.5, false, true, " is met.\n"}};
  for (const auto& [ratio, is_missed, is_sure, said] : cases) {
    advice.validation = PlanValidation{.seeds = 3, .against = {measured_at(ratio), {.name = "fp32"}}};
    EXPECT_TRUE(advice.meets_budget) << "by prediction";
    EXPECT_EQ(advice.misses_budget(), is_missed) << ratio;
    EXPECT_EQ(advice.meets_surely(), is_sure) << ratio;
    EXPECT_EQ(verdict_of().find("the time given is predicted, and measured ones scatter.") != std::string::npos,
              !is_missed && !is_sure)
        << verdict_of();
    EXPECT_EQ(verdict_of().find(", but measured above it.") != std::string::npos, is_missed) << verdict_of();
    const Json json = to_json(advice);
    EXPECT_EQ(json.at("plan").at("meets_budget"), !is_missed) << ratio;
    EXPECT_NEAR(json.at("budget").at("measured").at("low").get<double>(),
                advice.uniform[1].cost.seconds * ratio * std::exp(-0.01), 1e-12);
    EXPECT_NE(verdict_of().find(said), std::string::npos) << verdict_of();
  }
  advice.goal = {.budget = PlanQuantity::kDamage, .limit = 10.0};
  MeanDifference worse{.pairs = 3, .mean = 11.0, .interval = Interval{.low = 10.5, .high = 11.5}};
  advice.validation->against[1].loss = worse;
  EXPECT_TRUE(advice.misses_budget()) << "the training did more damage than the budget";
}

}  // namespace
}  // namespace mantissa::testing
