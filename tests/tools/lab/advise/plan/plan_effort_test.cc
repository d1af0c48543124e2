// The work of a plan, counted by hand.
#include "tools/lab/advise/plan/plan_advice.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/testing/error_of.h"
#include "tests/testing/weight_hash.h"
#include "tests/tools/lab/analyze/sensitivity/planted_model.h"

namespace mantissa::testing {
namespace {

std::vector<PlannedPlace> places_of(const PlanRunRequest& request, const Config& config) {
  std::vector<PlannedPlace> places = planned_layers(config, DType::kBF16, request.plan.recipes);
  for (const PlannedPlace& place : planned_shared(config, DType::kBF16, request.state, 1)) places.push_back(place);
  return places;
}

// Two blocks of four linear layers and an attention, and the head: 9 linear layers with 1 dtype and 3 recipe products,
// 2 attentions with 1 dtype.
TEST(PlanEffort, CountsStepsAsTheyAreMade) {
  const SmallRun run("plan_effort");
  const Config config = load_config(run.config_path(), {"train.steps=70"});
  PlanRunRequest request{.warm_up = 20, .batches = 3, .state = {}, .validation = {.steps = 100, .most_seeds = 5}};
  PlanEffort effort = plan_effort(request, config, places_of(request, config));
  EXPECT_EQ(effort.decisions, 9 * 4 + 2);
  EXPECT_EQ(effort.warm_up_steps, 20);
  // 38 decisions and the exact pass with an update and a loss after it each; two more losses for the rest.
  EXPECT_DOUBLE_EQ(effort.layer_steps, 3 * (39 * (4.0 / 3.0) + 2.0 / 3.0));
  EXPECT_EQ(effort.state_steps, 0);
  EXPECT_EQ(effort.validation_steps, 3 * 5 * 70) << "the plan, bf16 and fp32, no longer than the training";
  EXPECT_EQ(effort.turns, 3 * 5 * 40);
  EXPECT_DOUBLE_EQ(effort.steps(), 20 + 158 + 1050 + 600);
  const double pricing = effort.dry_runs * effort.dry_run_seconds + effort.timings * 0.02;
  EXPECT_DOUBLE_EQ(effort.seconds(2.0), 2.0 * 1828 + pricing);
  EXPECT_DOUBLE_EQ(effort.seconds(0.001), 0.001 * 1228 + 0.05 * 600 + pricing) << "short steps are timed by several";

  request.plan.damage = DamageScore::kHessian;
  EXPECT_DOUBLE_EQ(plan_effort(request, config, places_of(request, config)).layer_steps, effort.layer_steps + 2 * 8)
      << "two gradients for each probe";

  request.plan.damage = DamageScore::kLoss;
  request.plan.recipes = {};
  request.state = {kMoments};
  request.validation.most_seeds = 0;
  const std::vector<PlannedPlace> places = places_of(request, config);
  effort = plan_effort(request, config, places);
  EXPECT_EQ(effort.decisions, 9 + 2);
  EXPECT_EQ(effort.validation_steps + static_cast<double>(effort.turns), 0);
  const size_t formats = places[places.size() - 2].options.size() + places.back().options.size();
  EXPECT_DOUBLE_EQ(effort.state_steps, static_cast<double>(formats - 1) * 3 * (10 + 2.0 / 3.0))
      << "each format but one of the two most exact ones, which are tried together";
}

// A tiny model's steps take a second, the timing of its kernels most of a minute.
TEST(PlanEffort, CountsThePricingOfPlans) {
  const SmallRun run("plan_effort_pricing");
  const Config config = load_config(run.config_path());
  PlanRunRequest request{.rounds = 5, .validation = {.most_seeds = 0}};
  PlanEffort effort = plan_effort(request, config, places_of(request, config));
  // At least one product of each form and layer, in fp32 and in bf16: two blocks are alike.
  EXPECT_GE(effort.timings, 5 * 2 * 3 * 4);
  std::set<std::string> calls;
  for (const StepCalls& step : effort.timed) {
    for (const KernelCall& call : step.calls) calls.insert(call.signature());
  }
  EXPECT_EQ(effort.timings, 5.0 * static_cast<double>(calls.size())) << "the steps whose kernels are timed";
  EXPECT_GT(effort.dry_run_seconds, 0.0);
  EXPECT_GT(effort.dry_runs, 512) << "the most plans that are priced as wholes, and each option";
  EXPECT_GE(effort.seconds(1e-6), effort.timings * 0.02);
  EXPECT_NE(to_text(effort, 1e-6).find(" timings of kernels, "), std::string::npos) << to_text(effort, 1e-6);
  request.hardware = &find_hardware("h100");
  effort = plan_effort(request, config, places_of(request, config));
  EXPECT_EQ(effort.timings, 0) << "by data sheet";
  EXPECT_TRUE(effort.timed.empty());
  EXPECT_GT(effort.dry_runs, 512);
}

// fp32 weights, masters and two moments: 16 bytes a parameter, copied once; four copies in fp32.
TEST(PlanEffort, MemoryHasTheCopiesOfTheAnalysis) {
  const SmallRun run("plan_effort_memory");
  const Config config = load_config(run.config_path());
  const PlanRunRequest request{.validation = {.most_seeds = 0}};
  const MemoryTable exact = predict_memory_table(tried(in_exact_precision(config)), 1);
  const double copies = static_cast<double>(exact.parameters) * (16 + 16);
  const double bytes = plan_effort(request, config, places_of(request, config)).bytes;
  EXPECT_NEAR(bytes, static_cast<double>(exact.total()) + copies, 0.02 * bytes) << "and padding";
  const PlanRunRequest wired{.ranks = 7, .state = {kWire}, .validation = {.most_seeds = 0}};
  std::vector<PlannedPlace> places = planned_layers(config, DType::kBF16, wired.plan.recipes);
  for (const PlannedPlace& place : planned_shared(config, DType::kBF16, {kWire}, 7)) places.push_back(place);
  EXPECT_EQ(plan_effort(wired, config, places).bytes, 7.0 * static_cast<double>(exact.total()))
      << "a wire of seven ranks is tried by as many";
  const PlanRunRequest timed{};
  EXPECT_GT(plan_effort(timed, config, places_of(timed, config)).bytes, 2.0 * static_cast<double>(exact.total()));
}

TEST(PlanEffort, AsksWhereItIsMuch) {
  const PlanEffort effort{.warm_up_steps = 50, .layer_steps = 900, .validation_steps = 50, .bytes = 2048.0 * 1048576};
  EXPECT_EQ(error_of([&] { require_time_for(effort, 3.6); }), "") << "an hour";
  const std::string error = error_of([&] { require_time_for(effort, 7.2); });
  EXPECT_EQ(error,
            "advise --budget: about 1000 steps of 7.2 s, 2 GiB of memory, 2:00:00 (h:mm:ss): more than an hour.\n"
            "Go on with --yes, give a smaller model or train.global_batch, or reduce one of these:\n"
            "  90 % for damages of layers: --batches, --recipes none");
  EXPECT_EQ(to_text(effort, 0.05), "about 1000 steps of 0.05 s, 2 GiB of memory, less than a minute");
  EXPECT_EQ(error_of([&] { require_memory_for(effort, 2048.0 * 1048576); }), "");
  EXPECT_THROW(require_memory_for(effort, 2047.0 * 1048576), MemoryError);
}

TEST(PlanEffort, TimesAStepWithoutTakingOne) {
  PlantedModel model("plan_effort_time");
  const ModelRuntime& runtime = model.session.runtime;
  const auto weights = [&] { return hash_weights(runtime.parameters, *runtime.backend, *runtime.stream); };
  const uint64_t before = weights();
  EXPECT_GT(time_of_step(model.session), 0.0);
  EXPECT_EQ(weights(), before);
  EXPECT_EQ(model.session.next_step, PlantedModel::kSteps);
}

}  // namespace
}  // namespace mantissa::testing
