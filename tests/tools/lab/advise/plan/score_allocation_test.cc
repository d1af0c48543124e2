// Allocations by scores against all plans there are, with harms taken from the analysis by hand.
#include "tools/lab/advise/plan/plan_advice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/testing/error_of.h"
#include "tests/tools/lab/advise/plan/planted_advice.h"

namespace mantissa::testing {
namespace {

const DecisionScores& scores_of(const SensitivityAnalysis& analysis, const std::string& decision) {
  for (const DecisionScores& one : analysis.decisions) {
    if (name(one.decision) == decision) return one;
  }
  throw std::runtime_error("no decision " + decision);
}

class ScoreAllocation : public PlantedAdvice {
 protected:
  // fp32 or bf16 for each of nine linear layers and two attentions, within a budget.
  PlanAdvice allocated(DamageScore score, const SensitivityAnalysis& analysis, const std::string& budget) {
    request_.budget = parse_budget(budget);
    request_.recipes = {};
    request_.damage = score;
    request_.own_search = [&](const PlanProblem& problem, const PlanGoal& goal,
                              const std::vector<PlannedPlace>& places) {
      return allocate(problem, goal, score_damages(score, analysis, DType::kBF16, places));
    };
    return advise_plan(request_, model_.config, planned_layers(model_.config, DType::kBF16, {}), analysis, target_, 1);
  }
};

// Harms of bf16, by place: the formulas of the header, with the largest of the others where a score is not known.
std::vector<double> harms_of(DamageScore score, const SensitivityAnalysis& analysis, const PlanAdvice& advice) {
  std::vector<double> harms;
  double largest = 0.0;
  for (const PlannedPlace& place : advice.places) {
    const DecisionScores& one = scores_of(analysis, name(PrecisionDecision{place.layer, place.op, {}, "bf16"}));
    double harm = 0.0;
    if (score == DamageScore::kFisher) harm = one.fisher.mean;
    if (score == DamageScore::kHessian) harm = std::abs(one.hessian.mean);
    if (score == DamageScore::kInformation) harm = 5.0 - one.information.mean;
    if (score == DamageScore::kEntropy) harm = 0.5 * (one.entropy.mean + 4.0);
    harms.push_back(harm);
    if (std::isfinite(harm)) largest = std::max(largest, harm);
  }
  for (double& harm : harms) harm = std::isfinite(harm) ? harm : largest;
  return harms;
}

TEST_F(ScoreAllocation, HarmsLeastOfAllPlansWithinTheBudget) {
  SensitivityRequest analysis_request;
  analysis_request.formats = {"bf16"};
  analysis_request.batches = 2;
  analysis_request.probes = 4;
  const SensitivityAnalysis analysis = analyze_sensitivity(analysis_request, model_.session);
  int different = 0;
  Plan last;
  for (const DamageScore score :
       {DamageScore::kFisher, DamageScore::kHessian, DamageScore::kInformation, DamageScore::kEntropy}) {
    SCOPED_TRACE(name(score));
    const PlanAdvice advice = allocated(score, analysis, "time=140%");
    ASSERT_EQ(advice.places.size(), 11u);
    ASSERT_TRUE(advice.meets_budget);
    EXPECT_EQ(advice.plans_priced, 0) << "no other plan was searched for";
    const std::vector<double> harms = harms_of(score, analysis, advice);
    const auto harm_of_plan = [&](const Plan& plan) {
      double sum = 0.0;
      for (size_t i = 0; i < plan.size(); ++i) sum += plan[i] == 1 ? harms[i] : 0.0;
      return sum;
    };
    double least = std::numeric_limits<double>::infinity(), all = 0.0;
    for (unsigned bits = 0; bits < 1u << harms.size(); ++bits) {
      Plan plan;
      for (size_t i = 0; i < harms.size(); ++i) plan.push_back(static_cast<int>(bits >> i & 1u));
      if (advice.limited_in_parts(plan) <= advice.goal.tolerated()) least = std::min(least, harm_of_plan(plan));
      all = std::max(all, harm_of_plan(plan));
    }
    EXPECT_NEAR(harm_of_plan(advice.plan.choice), least, 1e-12 * all);
    EXPECT_GT(least, 0.0) << "the budget must not permit fp32 throughout";
    EXPECT_LT(least, all);
    EXPECT_DOUBLE_EQ(advice.plan.damage, evaluate(advice.problem, advice.plan.choice).damage) << "the measured loss";
    EXPECT_NE(text_of(advice).find("Precision was allocated by " + std::string(name(score))), std::string::npos);
    different += advice.plan.choice != last;
    last = advice.plan.choice;
  }
  EXPECT_GT(different, 1) << "scores must not all be alike";
}

// Sums of parts may find no plan within a budget, although other plans meet it as wholes. Here the search always finds
// fp32.
TEST_F(ScoreAllocation, ABudgetCannotBeMetOnlyWhereNoneOfAllPlansMeetsIt) {
  std::vector<PlannedPlace> places = planned_layers(model_.config, DType::kBF16, {});
  places.resize(5);
  const auto advice_for = [&](double bytes) {
    request_.budget = parse_budget(fmt::format("memory={:.0f}", bytes));
    request_.recipes = {};
    request_.damage = DamageScore::kFisher;
    request_.own_search = [](const PlanProblem& problem, const PlanGoal& goal, const std::vector<PlannedPlace>&) {
      const Plan exact(problem.size(), 0);
      const PlanTotals totals = evaluate(problem, exact);
      return SearchResult{.plan = exact, .totals = totals, .meets_budget = goal.is_met(totals)};
    };
    return advise_plan(request_, model_.config, places, analysed_->sensitivity, target_, 1);
  };
  const PlanAdvice any = advice_for(1e12);
  const double exact = any.uniform[0].cost.bytes;
  EXPECT_EQ(any.plan.cost.bytes, exact) << "the allocation is taken as it is";
  EXPECT_EQ(any.plans_priced, 0);
  double least = exact;
  for (unsigned bits = 0; bits < 1u << places.size(); ++bits) {
    Plan plan;
    for (size_t i = 0; i < places.size(); ++i) plan.push_back(static_cast<int>(bits >> i & 1u));
    least = std::min(least, any.priced("plan", plan).cost.bytes);
  }
  ASSERT_LT(least, exact);
  for (const double budget : {exact - 1.0, least, least - 1.0}) {
    SCOPED_TRACE(budget);
    const PlanAdvice advice = advice_for(budget);
    const std::string text = text_of(advice);
    EXPECT_EQ(advice.meets_budget, budget >= least) << text;
    EXPECT_LE(advice.plan.cost.bytes, std::max(budget, least));
    EXPECT_TRUE(advice.is_optimum);
    EXPECT_NE(text.find("No allocation by fisher meets the budget as a whole"), std::string::npos) << text;
    const auto [limit, found] = distinct_texts(PlanQuantity::kBytes, budget, least);
    const std::string missed = fmt::format("The budget of {} cannot be met: {} is the least", limit, found);
    EXPECT_EQ(text.starts_with(missed), budget < least) << missed << "\n" << text;
    const bool says_why = text.find("without --damage they are planned, too.") != std::string::npos;
    EXPECT_EQ(says_why, budget < least) << text;
  }
}

TEST_F(ScoreAllocation, AddsWhatAnOptionCombines) {
  const SensitivityAnalysis& analysis = analysed_->sensitivity;
  const std::vector<PlannedPlace> places = planned_layers(model_.config, DType::kBF16, {"current"});
  const OptionValues harms = score_damages(DamageScore::kEntropy, analysis, DType::kBF16, places);
  const PlannedPlace& first = places.front();
  const auto entropy = [&](const std::string& decision) {
    return scores_of(analysis, first.layer + " " + decision).entropy.mean + 4.0;
  };
  for (size_t option = 0; option < first.options.size(); ++option) {
    const std::string& name = first.options[option].name;
    if (name == "fp32") {
      EXPECT_EQ(harms[0][option], 0.0);
    }
    if (name == "bf16") {
      EXPECT_DOUBLE_EQ(harms[0][option], 0.5 * entropy("bf16"));
    }
    if (name == "current in fprop, wgrad") {
      EXPECT_DOUBLE_EQ(harms[0][option],
                       0.5 * entropy("bf16") + 0.75 * entropy("fprop current") + 0.75 * entropy("wgrad current"));
    }
  }
  EXPECT_EQ(error_of([] { parse_damage_score("luck"); }),
            "--damage: expected one of loss, fisher, hessian, mi, entropy, got 'luck'");
}

}  // namespace
}  // namespace mantissa::testing
