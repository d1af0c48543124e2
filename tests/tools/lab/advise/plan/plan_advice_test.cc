// Plans for a model with one deliberately sensitive layer: choices, costs and memory.
#include "tools/lab/advise/plan/plan_advice.h"
#include "core/backend/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <regex>
#include <stdexcept>

#include "core/kernels/gemm/gemm_cpu.h"
#include "tests/tools/lab/advise/plan/planted_advice.h"
#include "tools/lab/advise/advice.h"

namespace mantissa::testing {
namespace {

using PlanAdviceTest = PlantedAdvice;

// Whether the planted layer keeps its forward product in 16 bits or more, as it needs.
bool keeps_planted_high(const PlanAdvice& advice, const Plan& plan) {
  for (size_t i = 0; i < plan.size(); ++i) {
    if (advice.places[i].name() != kPlanted) continue;
    const std::vector<Product>& lowered = advice.places[i].options[static_cast<size_t>(plan[i])].products;
    return std::find(lowered.begin(), lowered.end(), Product::kForward) == lowered.end();
  }
  throw std::runtime_error(std::string("no layer ") + kPlanted);
}

// 8 bits throughout take about 50 % of the time of 16 bits. The rest of the 60 % goes to the layers that need it.
TEST_F(PlanAdviceTest, KeepsThePlantedLayerHighUnderATightBudget) {
  const PlanAdvice advice = plan("time=60%");
  ASSERT_TRUE(advice.meets_budget) << text_of(advice);
  EXPECT_LT(advice.uniform[2].cost.seconds, 0.55 * advice.uniform[1].cost.seconds) << "8 bits throughout";
  EXPECT_TRUE(keeps_planted_high(advice, advice.plan.choice)) << text_of(advice);
  const auto lowered = std::count_if(advice.places.begin(), advice.places.end(), [&](const PlannedPlace& layer) {
    return choice(advice, advice.plan.choice, layer.name()).starts_with("current");
  });
  EXPECT_GE(lowered, 4) << "others must be lowered\n" << text_of(advice);
}

TEST_F(PlanAdviceTest, SaysHowMuchOfTheLossIsOfOneUpdate) {
  const PlanAdvice advice = plan("time=60%");
  const Json json = to_json(advice);
  EXPECT_EQ(json.at("damages_by"), "one_step");
  double backward = 0.0;
  for (size_t i = 0; i < advice.places.size(); ++i) {
    const PlaceOption& option = advice.places[i].options[static_cast<size_t>(advice.plan.choice[i])];
    for (const PrecisionDecision& one : decisions_of(advice.places[i], option, advice.low)) {
      if (!one.product || one.product == Product::kForward) continue;
      const Estimate& loss = scores_of(analysed_->sensitivity, one).loss;
      backward += std::max(0.0, loss.mean) + loss.error;
    }
  }
  EXPECT_GT(backward, 0.0);
  EXPECT_DOUBLE_EQ(json.at("plan").at("backward_damage").get<double>(), backward);
  EXPECT_EQ(json.at("uniform")[1].at("backward_damage"), 0.0) << "16 bits are tried forward";
  EXPECT_NE(text_of(advice).find("backward products count with one update, "), std::string::npos) << text_of(advice);
  EXPECT_NE(to_plan_yaml(advice, "a.yaml").find("are no evidence about training"), std::string::npos);
}

TEST_F(PlanAdviceTest, SaysHowFarFromTheOptimumOfSumsTheSearchMayBe) {
  PlanAdvice advice = plan("time=60%");
  EXPECT_EQ(advice.sums_gap, 0.0);
  EXPECT_EQ(text_of(advice).find("too many to keep"), std::string::npos) << text_of(advice);
  advice.sums_gap = 0.01;
  EXPECT_EQ(to_json(advice).at("sums_gap"), 0.01);
  const std::string least = "too many to keep them all: the least loss may be lower by up to 0.01 nats.";
  EXPECT_NE(text_of(advice).find(least), std::string::npos) << text_of(advice);
}

// Formats differ in energy only: 8 bits take half.
TEST_F(PlanAdviceTest, UnderABudgetOfEnergySavesEnergyAndKeepsThePlantedLayerHigh) {
  costs_.saves_energy = true;
  const PlanAdvice advice = plan("energy=60%");
  const std::string text = text_of(advice);
  ASSERT_TRUE(advice.meets_budget) << text;
  const StepCost &cost = advice.plan.cost, &low = advice.uniform[1].cost;
  EXPECT_LE(cost.joules, 0.6 * low.joules * (1.0 + 1e-9));
  EXPECT_GT(cost.joules, 0.5 * low.joules);
  EXPECT_NEAR(cost.seconds, low.seconds, 1e-6 * low.seconds);
  EXPECT_NEAR(cost.joules, advice.common.joules + evaluate(advice.problem, advice.plan.choice).joules,
              1e-6 * cost.joules);
  EXPECT_TRUE(keeps_planted_high(advice, advice.plan.choice)) << text;
  // These plans do not differ in time, so energy makes the front.
  EXPECT_GT(advice.front_plans.size(), 4u);
  const nlohmann::json json = to_json(advice);
  EXPECT_EQ(json.at("budget").at("kind"), "energy");
  EXPECT_DOUBLE_EQ(json.at("plan").at("joules").get<double>(), cost.joules);
  const std::string energy = to_text(PlanQuantity::kJoules, cost.joules);
  EXPECT_NE(text.find(", " + energy + " of energy a rank (0."), std::string::npos) << text;
  EXPECT_NE(text.find("in time, memory, energy and loss at once"), std::string::npos) << text;
  EXPECT_NE(text.find("current: saves "), std::string::npos) << text;
  EXPECT_NE(to_plan_yaml(advice, "a model").find(energy + " of energy"), std::string::npos);
  EXPECT_FALSE(plan("energy=40%").meets_budget) << "8 bits throughout take 50 %";
}

TEST_F(PlanAdviceTest, SaysNothingOfAnEnergyThatIsNotKnown) {
  const PlanAdvice advice = plan("time=60%");
  EXPECT_EQ(text_of(advice).find("energy"), std::string::npos) << text_of(advice);
  EXPECT_TRUE(to_json(advice).at("plan").at("joules").is_null());
}

TEST_F(PlanAdviceTest, CountsOptionsFromTheLeastCostOfTheirDecision) {
  for (const PlanDecision& decision : plan("time=100%").problem) {
    EXPECT_EQ(std::ranges::min(decision.options, {}, &PlanOption::seconds).seconds, 0.0) << decision.name;
    EXPECT_EQ(std::ranges::min(decision.options, {}, &PlanOption::bytes).bytes, 0.0) << decision.name;
  }
}

TEST_F(PlanAdviceTest, NamesTheNearestPlanWhereNoneMeetsTheBudget) {
  const PlanAdvice advice = plan("time=10%");
  EXPECT_FALSE(advice.meets_budget);
  EXPECT_NE(text_of(advice).find("cannot be met: "), std::string::npos) << "memory does not matter";
  EXPECT_EQ(text_of(advice).find("would exceed the budget"), std::string::npos) << "the plan itself does";
  for (const Plan& other : advice.front.plans) {
    EXPECT_GE(evaluate(advice.problem, other).seconds,
              evaluate(advice.problem, advice.plan.choice).seconds * (1.0 - 1e-9))
        << "the minimum";
  }
}

TEST_F(PlanAdviceTest, ALossBudgetBuysTime) {
  const PlanAdvice strict = plan("loss=1e-9"), generous = plan("loss=10");
  EXPECT_TRUE(generous.meets_budget);
  EXPECT_LT(generous.plan.cost.seconds, strict.plan.cost.seconds);
  EXPECT_LE(strict.plan.damage, 1e-9);
  for (const PlannedPlace& layer : strict.places) {
    EXPECT_EQ(choice(strict, strict.plan.choice, layer.name()), "fp32");
  }
}

TEST_F(PlanAdviceTest, WhatNoPlanDecidesAboutCountsAsWell) {
  request_.rest_damage = 0.5;
  const PlanAdvice impossible = plan("loss=0.4");
  EXPECT_FALSE(impossible.meets_budget);
  EXPECT_EQ(impossible.plan.damage, 0.5) << "the minimum: fp32 for all layers";
  EXPECT_TRUE(plan("loss=0.6").meets_budget);
}

// Moments as decisions: one is harmless in 8 bits, the other is not.
class PlanAdviceOfState : public PlantedAdvice {
 protected:
  PlanAdviceOfState() {
    places_ = planned_layers(model_.config, DType::kBF16, request_.recipes);
    for (PlannedPlace& place : planned_shared(model_.config, DType::kBF16, {kMoments}, 1)) places_.push_back(place);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    request_.most_wholes = 64;
    request_.shared_damages = {{"optimizer.first_moment", "bf16", {.mean = 0.0, .error = 0.0}},
                               {"optimizer.first_moment", "8bit", {.mean = 0.0, .error = 0.0}},
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
  EXPECT_TRUE(advice.meets_budget) << text_of(advice);
  EXPECT_NE(choice(advice, advice.plan.choice, "optimizer.first_moment"), "fp32") << text_of(advice);
  EXPECT_EQ(choice(advice, advice.plan.choice, "optimizer.second_moment"), "fp32") << text_of(advice);
  EXPECT_NE(advice.config.optimizer.adamw.first_moment, MomentFormat::kF32);
  EXPECT_EQ(advice.config.optimizer.adamw.second_moment, MomentFormat::kF32);
  EXPECT_LT(advice.plan.cost.bytes, 0.97 * advice.uniform[1].cost.bytes);
  EXPECT_NE(text_of(advice).find("optimizer.second_moment bf16_stochastic: gradients or the loss were not finite"),
            std::string::npos)
      << text_of(advice);
  EXPECT_NE(to_plan_yaml(advice, "a model").find("#   optimizer.first_moment: "), std::string::npos);
}

TEST_F(PlanAdviceOfState, CountsInWhatAPlanPromises) {
  PlanAdvice advice = plan("time=200%");
  Plan lowered = advice.plan.choice;
  lowered.back() = 1;  // index into the remaining options, fp32 and 8bit
  EXPECT_EQ(choice(advice, lowered, "optimizer.second_moment"), "8bit");
  lowered[lowered.size() - 2] = 0;
  const double before = evaluate(advice.problem, lowered).damage;
  advice.take(lowered);
  EXPECT_GE(advice.plan.damage, 5.1) << "mean and one standard error";
  EXPECT_EQ(advice.plan.damage, before + advice.rest_damage);
  EXPECT_TRUE(advice.breaks_promise(
      {.name = "fp32", .loss = MeanDifference{.pairs = 3, .mean = 9.0, .interval = Interval{8.0, 10.0}}}));
}

// Runs on one rank have no wire.
TEST_F(PlanAdviceOfState, PromisesRunsNothingOfAWire) {
  for (PlannedPlace& place : planned_shared(model_.config, DType::kBF16, {kWire}, 2)) places_.push_back(place);
  request_.shared_damages.push_back({"comm.wire_dtype", "bf16", {.mean = 0.25, .error = 0.0}});
  PlanAdvice advice = plan("time=200%");
  Plan wired = advice.plan.choice;
  wired.back() = 1;
  advice.take(wired);
  EXPECT_EQ(choice(advice, wired, "comm.wire_dtype"), "bf16");
  EXPECT_NEAR(advice.promised_to_runs(), advice.plan.damage - 0.25, 1e-12);
}

TEST_F(PlanAdviceTest, APlanThatIsMeasuredSlowerThanTheBudgetOfTimeOrLossIsFoundOut) {
  const PlanAdvice as_fast = plan("time=100%"), slower = plan("time=130%"), loss = plan("loss=10"),
                   memory = plan("memory=100%");
  EXPECT_TRUE(as_fast.exceeds_measured(measured_at(1.1)));
  EXPECT_FALSE(as_fast.exceeds_measured(measured_at(1.01))) << "equal, within the margin";
  EXPECT_FALSE(as_fast.exceeds_measured(measured_at(0.9)));
  EXPECT_FALSE(as_fast.exceeds_measured({.name = "bf16"})) << "not measured";
  EXPECT_FALSE(slower.exceeds_measured(measured_at(1.1))) << "the budget allows it";
  EXPECT_TRUE(slower.exceeds_measured(measured_at(1.4)));
  EXPECT_TRUE(loss.exceeds_measured(measured_at(1.1))) << "under a loss budget the plan must be fast";
  EXPECT_FALSE(memory.exceeds_measured(measured_at(1.1)));
  const PlanAdvice faster = plan("time=60%");
  ASSERT_TRUE(faster.meets_budget);
  EXPECT_TRUE(faster.exceeds_measured(measured_at(0.9))) << "faster than 16 bits, and not by as much as was asked for";
  EXPECT_TRUE(faster.exceeds_measured(measured_at(1.0))) << "as fast as 16 bits, which do not meet the budget";
  EXPECT_FALSE(faster.exceeds_measured(measured_at(0.605))) << "the interval is not wholly above";
  EXPECT_FALSE(faster.exceeds_measured(measured_at(0.5)));
}

// "Would exceed the budget" is said of what the whole leaves of it.
TEST_F(PlanAdviceTest, ReasonsHaveAsMuchOfTheBudgetLeftAsTheWhole) {
  PlanAdvice advice = plan("time=60%");
  ASSERT_TRUE(advice.meets_budget);
  const auto compare_with_wholes = [&] {
    const std::regex pattern("; (.+) instead( would exceed|:)");
    int compared = 0;
    for (size_t i = 0; i < advice.reasons.size(); ++i) {
      std::smatch found;
      if (!std::regex_search(advice.reasons[i], found, pattern)) continue;
      Plan other = advice.plan.choice;
      const auto& options = advice.problem[i].options;
      other[i] = static_cast<int>(std::ranges::find(options, found[1].str(), &PlanOption::name) - options.begin());
      EXPECT_EQ(advice.goal.is_met(advice.priced("other", other).totals()), found[2] == ":") << advice.reasons[i];
      ++compared;
    }
    EXPECT_GE(compared, 4);
  };
  compare_with_wholes();
  advice.common.seconds *= 0.5;  // parts that add up to less leave no more
  advice.goal.limit = 1.02 * advice.plan.cost.seconds;
  advice.take(advice.plan.choice);
  compare_with_wholes();
}

TEST_F(PlanAdviceTest, EachPlanSaysWhetherItMeetsTheBudget) {
  const PlanAdvice advice = plan("time=60%");
  const Json figures = to_json(advice);
  EXPECT_EQ(figures["plan"]["meets_budget"], true);
  EXPECT_EQ(figures["uniform"][1]["meets_budget"], false) << "16 bits take 100 %";
  for (const Json& one : figures["front"]) {
    EXPECT_EQ(one["meets_budget"], one["seconds"] <= advice.goal.tolerated()) << one;
  }
}

TEST_F(PlanAdviceTest, AUniformPrecisionTakesThePlaceOfAPlan) {
  PlanAdvice advice = plan("time=100%");
  advice.take(advice.uniform[1].choice);
  for (const PlannedPlace& layer : advice.places) EXPECT_EQ(choice(advice, advice.plan.choice, layer.name()), "bf16");
  EXPECT_TRUE(advice.meets_budget);
  EXPECT_EQ(advice.plan.cost.seconds, advice.uniform[1].cost.seconds);
}

TEST_F(PlanAdviceTest, PredictsThePlanAsAWholeAndWritesItAsAConfiguration) {
  const PlanAdvice advice = plan("time=60%");
  // Only products take time here, and layers' products are independent of each other.
  EXPECT_NEAR(advice.plan.cost.seconds, advice.common.seconds + evaluate(advice.problem, advice.plan.choice).seconds,
              1e-6 * advice.plan.cost.seconds);
  const std::string yaml = to_plan_yaml(advice, "a model");
  EXPECT_NE(yaml.find("# A plan of precision for a model"), std::string::npos);
  EXPECT_EQ(to_yaml(parse_config(yaml, "plan")), to_yaml(advice.config));
  EXPECT_EQ(advice.reasons.size(), advice.places.size());
  const nlohmann::json json = to_json(advice);
  EXPECT_EQ(json.at("places").size(), advice.places.size());
  EXPECT_FALSE(json.contains("solvers"));
}

// ---- Costs and memory.

const EvaluatedPrecision& evaluation(const Advice& advice, const std::string& name) {
  return *std::ranges::find(advice.evaluations, name, &EvaluatedPrecision::name);
}

// A CPU keeps packed weights over micro-batches, unless it has matrix units, which does not matter on a GPU.
TEST(PlanCosts, AreThoseThatAdviceHasForTheDevice) {
  const SmallRun run("plan_costs");
  const Config config = load_config(run.config_path(), {"device=cpu"});
  const Config low = with_plan(config, DType::kBF16, {}, {});
  const bool packs = cpu::own_kernel(DType::kBF16, cpu::preferred_bf16_gemm()) != nullptr;
  EXPECT_EQ(predict_memory_table(low, 1).packed > 0, packs);
  Roofline roofline(find_hardware("h100"));
  ProductCosts costs;
  const std::unique_ptr<Backend> cpu = create_backend("cpu");
  const Target absent = absent_target(find_hardware("h100"), roofline);
  const Target present{.title = "here", .costs = &costs, .packing = cpu.get()};
  for (const Target& target : {absent, present}) {
    for (const int ranks : {1, 2}) {
      const Advice advice = advise("a model", config, candidates_of(config, {"bf16"}), ranks, target);
      const EvaluatedPrecision& bf16 = evaluation(advice, "bf16");
      const StepCost cost = step_cost(low, target, ranks);
      EXPECT_EQ(cost.bytes, static_cast<double>(bf16.memory.total())) << target.title << " " << ranks;
      EXPECT_EQ(cost.seconds, bf16.prediction.step_seconds()) << target.title << " " << ranks;
      EXPECT_EQ(cost.joules, bf16.prediction.joules) << target.title << " " << ranks;
      EXPECT_EQ(cost.joules > 0.0, target.hardware != nullptr) << target.title << " " << ranks;
      EXPECT_EQ(bf16.memory.packed > 0, packs && target.hardware == nullptr) << target.title << " " << ranks;
    }
  }
}

// A roofline knows the least time, and a range of energy.
TEST_F(PlanAdviceTest, ABudgetThatOnlyTheLowerEndMeetsMayOrMayNotBeKept) {
  const Hardware& hardware = find_hardware("h100");
  Roofline roofline(hardware);
  const auto advice_for = [&](const Target& target, const std::string& budget) {
    request_.budget = parse_budget(budget);
    request_.most_wholes = 64;
    return advise_plan(request_, model_.config, planned_layers(model_.config, DType::kBF16, request_.recipes),
                       analysed_->sensitivity, target, 1);
  };
  const auto expect = [](const PlanAdvice& advice, bool is_sure, const std::string& said) {
    ASSERT_TRUE(advice.meets_budget);
    EXPECT_EQ(advice.meets_surely(), is_sure);
    EXPECT_EQ(to_json(advice).at("meets_surely"), is_sure);
    EXPECT_FALSE(advice.misses_budget());
    EXPECT_NE(text_of(advice).find(said), std::string::npos) << text_of(advice);
  };
  const Target absent = absent_target(hardware, roofline);
  expect(advice_for(absent, "time=200%"), false, ": the time given is the least possible.");
  expect(advice_for(absent, "memory=200%"), true, ": within the budget of ");
  PlanAdvice by_loss = advice_for(absent, "loss=10");
  expect(by_loss, false, ": within the budget of 10 nats by one step, not shown by training.");
  EXPECT_NE(text_of(by_loss).find("`mantissa compare` on the plan gives it."), std::string::npos) << text_of(by_loss);
  by_loss.validation = PlanValidation{.against = {{.name = "bf16"}, {.name = "fp32"}}};
  EXPECT_FALSE(by_loss.meets_surely()) << "no pair of runs";
  std::optional<MeanDifference>& trained = by_loss.validation->against[1].loss;
  trained = MeanDifference{.pairs = 3, .mean = 0.01, .interval = Interval{.low = -1.0, .high = 9.0}};
  expect(by_loss, true, ": within the budget of 10 nats.");
  trained->interval->high = 11.0;
  expect(by_loss, false, "not shown by training.");
  expect(advice_for(target_, "time=200%"), true, ": within the budget of ");  // measured
  const PlanAdvice any = advice_for(absent, "energy=10kJ");
  const double most = any.plan.cost.most_joules;
  EXPECT_NEAR(most, 700.0 * any.plan.cost.seconds / 0.4, 1e-9 * most);
  expect(any, true,
         to_text(PlanQuantity::kJoules, any.plan.cost.joules) + " to " + to_text(PlanQuantity::kJoules, most) +
             " of energy a rank");
  expect(advice_for(absent, fmt::format("energy={:.17f}", most * 1.001)), true, ": within the budget of ");
  expect(advice_for(absent, fmt::format("energy={:.17f}", most * 0.999)), false,
         ": the energy given is the least possible.");
}

class PlanMemory : public PlantedAdvice {
 protected:
  PlanAdvice plan_with(double memory_bytes, const std::string& budget = "time=60%") {
    request_.budget = parse_budget(budget);
    Target target = target_;
    target.memory_bytes = memory_bytes;
    return advise_plan(request_, model_.config, planned_layers(model_.config, DType::kBF16, request_.recipes),
                       analysed_->sensitivity, target, 1);
  }
};

TEST_F(PlanMemory, PlansTakeNoMoreThanTheDeviceHas) {
  const PlanAdvice unknown = plan_with(0.0, "time=90%"), smaller = plan_with(unknown.plan.cost.bytes - 1.0, "time=90%");
  EXPECT_TRUE(smaller.plan.cost.fits()) << text_of(smaller);
  EXPECT_LT(smaller.plan.cost.bytes, unknown.plan.cost.bytes);
  EXPECT_TRUE(smaller.meets_budget);
  EXPECT_FALSE(smaller.uniform[0].cost.fits()) << "fp32";
}

TEST_F(PlanMemory, ABudgetThatMemoryPreventsIsSaidToBe) {
  const PlanAdvice unknown = plan_with(0.0, "loss=1e-12");  // fp32 throughout needs the most memory
  ASSERT_TRUE(unknown.meets_budget);
  const PlanAdvice smaller = plan_with(unknown.plan.cost.bytes - 1.0, "loss=1e-12");
  EXPECT_TRUE(smaller.plan.cost.fits());
  EXPECT_FALSE(smaller.meets_budget);
  EXPECT_NE(text_of(smaller).find("cannot be met within the hardware's memory of "), std::string::npos)
      << text_of(smaller);
}

TEST_F(PlanMemory, WhereNoPlanFitsThatIsSaid) {
  constexpr const char* kWarning = "It does not fit: it takes ";
  const PlanAdvice unknown = plan_with(0.0);
  const double bytes = unknown.plan.cost.bytes;
  for (const PlanAdvice& advice : {unknown, plan_with(bytes)}) {
    EXPECT_EQ(text_of(advice).find(kWarning), std::string::npos) << text_of(advice);
    EXPECT_TRUE(to_json(advice).at("plan").at("fits").get<bool>());
  }
  const PlanAdvice large = plan_with(1024.0);
  EXPECT_NE(text_of(large).find(kWarning + to_text(PlanQuantity::kBytes, large.plan.cost.bytes) +
                                " of memory, and the hardware has "),
            std::string::npos)
      << text_of(large);
  EXPECT_NE(to_plan_yaml(large, "a model").find("# " + std::string(kWarning)), std::string::npos);
  EXPECT_FALSE(to_json(large).at("plan").at("fits").get<bool>());
  EXPECT_FALSE(to_json(large).at("uniform")[0].at("fits").get<bool>()) << "fp32, which takes more";
}

}  // namespace
}  // namespace mantissa::testing
