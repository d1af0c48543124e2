// Plans for a model with one layer that was made sensitive on purpose.
#include "tools/lab/advise/plan/plan_advice.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>

#include "tests/testing/weight_hash.h"
#include "tests/tools/lab/advise/plan/planted_advice.h"
#include "tools/lab/advise/plan/differentiable.h"
#include "tools/lab/advise/plan/shared_options.h"

namespace mantissa::testing {
namespace {

using PlanAdviceTest = PlantedAdvice;

// What the planted layer needs: its forward product in 16 bits at least.
bool keeps_planted_high(const PlanAdvice& advice, const Plan& plan) {
  for (size_t i = 0; i < plan.size(); ++i) {
    if (advice.places[i].name() != kPlanted) continue;
    const std::vector<Product>& lowered = advice.places[i].options[static_cast<size_t>(plan[i])].products;
    return std::find(lowered.begin(), lowered.end(), Product::kForward) == lowered.end();
  }
  throw std::runtime_error(std::string("no layer ") + kPlanted);
}

// Everything in 8 bits takes some 50 % of everything in 16: what 60 % leave is for the layers that need it.
TEST_F(PlanAdviceTest, EverySolverKeepsThePlantedLayerHighUnderATightBudget) {
  const PlanAdvice advice = plan("time=60%");
  ASSERT_TRUE(advice.chosen.meets_budget) << to_text(advice);
  EXPECT_LT(advice.uniform[2].cost.seconds, 0.55 * advice.uniform[1].cost.seconds) << "8 bits throughout";
  for (const auto& [solver, result] : advice.results) {
    EXPECT_TRUE(result.meets_budget) << solver;
    EXPECT_TRUE(keeps_planted_high(advice, result.plan)) << solver << "\n" << to_text(advice);
    const auto lowered = std::count_if(advice.places.begin(), advice.places.end(), [&](const PlannedPlace& layer) {
      return choice(advice, result.plan, layer.name()).starts_with("current");
    });
    EXPECT_GE(lowered, 4) << solver << " must lower others";
  }
}

TEST_F(PlanAdviceTest, TheDifferentiableSearchKeepsThePlantedLayerHighAndTheModelAsItWas) {
  const std::vector<float> before = weights_of(model_.session, std::string(kPlanted) + ".weight");
  request_.solver = kDifferentiable;
  request_.own_search = [&](const PlanProblem& problem, const PlanGoal& goal, const std::vector<PlannedPlace>& layers) {
    return search_differentiably(model_.config, DType::kBF16, layers, problem, goal, {.steps = 80}, model_.session);
  };
  const PlanAdvice advice = plan("time=60%");
  EXPECT_EQ(weights_of(model_.session, std::string(kPlanted) + ".weight"), before);
  EXPECT_TRUE(advice.chosen.meets_budget) << to_text(advice);
  EXPECT_TRUE(keeps_planted_high(advice, advice.chosen.plan)) << to_text(advice);
  EXPECT_EQ(advice.results.back().first, kDifferentiable);
}

// Predictions that make the planted layer harmless deceive who works with them alone, and not who measures.
TEST_F(PlanAdviceTest, TheDifferentiableSearchUnderALossBudgetGoesByTheLossesThatItMeasures) {
  const auto weights = [&] {
    const ModelRuntime& runtime = model_.session.runtime;
    return hash_weights(runtime.parameters, *runtime.backend, *runtime.stream);
  };
  const uint64_t before = weights();
  const PlanAdvice advice = plan("loss=0.02");
  PlanProblem problem = advice.problem;
  for (PlanDecision& decision : problem.decisions) {
    if (decision.name != kPlanted) continue;
    for (PlanOption& option : decision.options) option.damage = option.damage_error = 0.0;
  }
  const SearchResult deceived = make_plan_solver("knapsack")->solve(problem, advice.goal);
  const SearchResult found = search_differentiably(model_.config, DType::kBF16, advice.places, problem, advice.goal,
                                                   {.steps = 80}, model_.session);
  EXPECT_EQ(weights(), before);
  EXPECT_FALSE(keeps_planted_high(advice, deceived.plan)) << "else nothing was planted in the predictions";
  EXPECT_TRUE(keeps_planted_high(advice, found.plan)) << choice(advice, found.plan, kPlanted);
  EXPECT_TRUE(found.meets_budget);
}

TEST_F(PlanAdviceTest, NamesTheNearestPlanWhereNoneMeetsTheBudget) {
  const PlanAdvice advice = plan("time=10%");
  EXPECT_FALSE(advice.chosen.meets_budget);
  EXPECT_NE(to_text(advice).find("cannot be met: "), std::string::npos) << "memory plays no part";
  EXPECT_EQ(to_text(advice).find("would exceed the budget"), std::string::npos) << "the plan itself does";
  const nlohmann::json json = to_json(advice);
  for (const auto& [solver, result] : advice.results) {
    EXPECT_FALSE(result.meets_budget) << solver;
    EXPECT_FALSE(json.at("solvers").at(solver).at("meets_budget").get<bool>()) << solver;
  }
  for (const FrontPlan& other : advice.front.plans) {
    EXPECT_GE(other.totals.seconds, advice.chosen.totals.seconds * (1.0 - 1e-9)) << "the least that there is";
  }
}

TEST_F(PlanAdviceTest, ALossBudgetBuysTime) {
  const PlanAdvice strict = plan("loss=1e-9"), generous = plan("loss=10");
  EXPECT_TRUE(generous.chosen.meets_budget);
  EXPECT_LT(generous.plan.cost.seconds, strict.plan.cost.seconds);
  EXPECT_LE(strict.plan.damage, 1e-9);
  for (const PlannedPlace& layer : strict.places) {
    EXPECT_EQ(choice(strict, strict.chosen.plan, layer.name()), "fp32");
  }
}

TEST_F(PlanAdviceTest, WhatNoPlanDecidesAboutCountsAsWell) {
  request_.rest_damage = 0.5;
  const PlanAdvice impossible = plan("loss=0.4");
  EXPECT_FALSE(impossible.chosen.meets_budget);
  EXPECT_EQ(impossible.plan.damage, 0.5) << "the least that there is: fp32 for all layers";
  EXPECT_TRUE(plan("loss=0.6").chosen.meets_budget);
}

// Of moments, where one is harmless in 8 bits and the other is not.
class PlanAdviceOfState : public PlantedAdvice {
 protected:
  PlanAdviceOfState() {
    places_ = planned_layers(model_.config, DType::kBF16, request_.recipes);
    for (PlannedPlace& place : planned_shared(model_.config, DType::kBF16, {kMoments}, 1)) places_.push_back(place);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    request_.most_wholes = 64;
    request_.shared_damages = {{"optimizer.first_moment", "bf16", {}},
                               {"optimizer.first_moment", "8bit", {}},
                               {"optimizer.second_moment", "bf16_stochastic", {.mean = nan, .error = nan}},
                               {"optimizer.second_moment", "8bit", {.mean = 5.0, .error = 0.1}}};
  }
  PlanAdvice plan(const std::string& budget) {
    request_.budget = parse_budget(budget);
    return advise_plan(request_, model_.config, places_, analysed_->sensitivity, target_, 1);
  }
  std::vector<PlannedPlace> places_;
};

TEST_F(PlanAdviceOfState, IsDecidedTogetherWithLayers) {
  const PlanAdvice advice = plan("memory=97%");
  EXPECT_TRUE(advice.chosen.meets_budget) << to_text(advice);
  EXPECT_NE(choice(advice, advice.chosen.plan, "optimizer.first_moment"), "fp32") << to_text(advice);
  EXPECT_EQ(choice(advice, advice.chosen.plan, "optimizer.second_moment"), "fp32") << to_text(advice);
  EXPECT_NE(advice.config.optimizer.adamw.first_moment, MomentFormat::kF32);
  EXPECT_EQ(advice.config.optimizer.adamw.second_moment, MomentFormat::kF32);
  EXPECT_LT(advice.plan.cost.bytes, 0.97 * advice.uniform[1].cost.bytes);
  EXPECT_NE(to_text(advice).find("optimizer.second_moment bf16_stochastic: gradients or the loss were not finite"),
            std::string::npos)
      << to_text(advice);
  EXPECT_NE(to_plan_yaml(advice, "a model").find("#   optimizer.first_moment: "), std::string::npos);
}

TEST_F(PlanAdviceOfState, CountsInWhatAPlanPromises) {
  PlanAdvice advice = plan("time=200%");
  Plan lowered = advice.chosen.plan;
  lowered.back() = 1;  // of what is left: fp32 and 8bit
  EXPECT_EQ(choice(advice, lowered, "optimizer.second_moment"), "8bit");
  lowered[lowered.size() - 2] = 0;
  const double before = evaluate(advice.problem, lowered).damage;
  take_plan(advice, lowered, model_.config, target_, 1);
  EXPECT_GE(advice.plan.damage, 5.1) << "mean and one standard error";
  EXPECT_EQ(advice.plan.damage, before + advice.rest_damage);
  EXPECT_TRUE(breaks_promise(
      advice, {.name = "fp32", .loss = MeanDifference{.pairs = 3, .mean = 9.0, .interval = Interval{8.0, 10.0}}}));
}

// Which runs of one rank have none of.
TEST_F(PlanAdviceOfState, PromisesRunsNothingOfAWire) {
  for (PlannedPlace& place : planned_shared(model_.config, DType::kBF16, {kWire}, 2)) places_.push_back(place);
  request_.shared_damages.push_back({"comm.wire_dtype", "bf16", {.mean = 0.25}});
  PlanAdvice advice = plan("time=200%");
  Plan wired = advice.chosen.plan;
  wired.back() = 1;
  take_plan(advice, wired, model_.config, target_, 1);
  EXPECT_EQ(choice(advice, wired, "comm.wire_dtype"), "bf16");
  EXPECT_NEAR(promised_to_runs(advice), advice.plan.damage - 0.25, 1e-12);
}

TEST_F(PlanAdviceTest, APlanThatIsMeasuredSlowerThanTheBudgetOfTimeOrLossIsFoundOut) {
  const PlanAdvice as_fast = plan("time=100%"), slower = plan("time=130%"), loss = plan("loss=10"),
                   memory = plan("memory=100%");
  EXPECT_TRUE(exceeds_measured(as_fast, measured_at(1.1)));
  EXPECT_FALSE(exceeds_measured(as_fast, measured_at(1.01))) << "equal, within the margin";
  EXPECT_FALSE(exceeds_measured(as_fast, measured_at(0.9)));
  EXPECT_FALSE(exceeds_measured(as_fast, {.name = "bf16"})) << "not measured";
  EXPECT_FALSE(exceeds_measured(slower, measured_at(1.1))) << "the budget allows it";
  EXPECT_TRUE(exceeds_measured(slower, measured_at(1.4)));
  EXPECT_TRUE(exceeds_measured(loss, measured_at(1.1))) << "such a plan is to be fast";
  EXPECT_FALSE(exceeds_measured(memory, measured_at(1.1)));
}

TEST_F(PlanAdviceTest, AUniformPrecisionTakesThePlaceOfAPlan) {
  PlanAdvice advice = plan("time=100%");
  take_uniform(advice, "bf16", model_.config, target_, 1);
  for (const PlannedPlace& layer : advice.places) EXPECT_EQ(choice(advice, advice.chosen.plan, layer.name()), "bf16");
  EXPECT_TRUE(advice.chosen.meets_budget);
  EXPECT_EQ(advice.plan.cost.seconds, advice.uniform[1].cost.seconds);
}

TEST_F(PlanAdviceTest, PredictsThePlanAsAWholeAndWritesItAsAConfiguration) {
  const PlanAdvice advice = plan("time=60%");
  // Products are all that takes time here, and those of layers are independent of each other.
  EXPECT_NEAR(advice.plan.cost.seconds, advice.common.seconds + advice.chosen.totals.seconds,
              1e-6 * advice.plan.cost.seconds);
  const std::string yaml = to_plan_yaml(advice, "a model");
  EXPECT_NE(yaml.find("# A plan of precision for a model"), std::string::npos);
  EXPECT_EQ(to_yaml(parse_config(yaml, "plan")), to_yaml(advice.config));
  EXPECT_EQ(advice.reasons.size(), advice.places.size());
  const nlohmann::json json = to_json(advice);
  EXPECT_EQ(json.at("places").size(), advice.places.size());
  EXPECT_EQ(json.at("solvers").size(), advice.results.size());
}

}  // namespace
}  // namespace mantissa::testing
