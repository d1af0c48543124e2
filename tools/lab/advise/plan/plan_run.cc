#include "tools/lab/advise/plan/plan_run.h"

#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/lab/advise/device/cache_model.h"
#include "tools/lab/advise/device/measured_costs.h"
#include "tools/lab/advise/plan/differentiable.h"
#include "tools/lab/advise/plan/layer_options.h"
#include "tools/lab/advise/plan/plan_parts.h"
#include "tools/lab/advise/plan/plan_trials.h"
#include "tools/lab/advise/plan/point_damages.h"
#include "tools/lab/advise/plan/trial_configs.h"
#include "tools/train/launch.h"
#include "tools/train/threads.h"
#include "tools/train/train_step.h"

namespace mantissa {
namespace {

void require_enumerable(const std::vector<PlannedPlace>& layers, const std::vector<PlannedPlace>& shared) {
  double plans = 1.0;
  for (const auto* places : {&layers, &shared}) {
    for (const PlannedPlace& place : *places) plans *= static_cast<double>(place.options.size());
  }
  if (plans <= static_cast<double>(SearchSettings().most_plans)) return;
  throw ConfigError(fmt::format(
      "--solver enumeration: {:.2g} plans are more than the {} that it tries; give knapsack, which finds the "
      "best of them as well",
      plans, SearchSettings().most_plans));
}

// Products are in `low` wherever a plan chooses nothing else.
void require_units(const Hardware& hardware, DType low) {
  const ProductFormat format = low == DType::kF16 ? ProductFormat::kF16 : ProductFormat::kBF16;
  if (units_for(hardware, format)) return;
  std::string others;
  for (const Hardware& other : all_hardware()) {
    if (units_for(other, format)) others += fmt::format("{}{}", others.empty() ? "" : ", ", other.name);
  }
  throw ConfigError(fmt::format(
      "--hardware {}: expected units for {}, which plans with precision.compute={} are made of, but {} has none, or "
      "none whose rate is published: give precision.compute={}, or --hardware with one of {}",
      hardware.name, name(format), name(low), hardware.title, name(low == DType::kF16 ? DType::kBF16 : DType::kF16),
      others));
}

void train(Session& session, int64_t steps) {
  TrainStep step(session);
  for (int64_t i = 0; i < steps; ++i) step.run();
  step.finish();
}

// Most calls of any plan are those of some uniform one: each is timed in several rounds, since the device may do other
// work for a while.
void time_uniform_steps(const Config& config, DType low, const std::vector<PlannedPlace>& places,
                        const std::vector<std::string>& recipes, const Target& target, MeasuredCosts& costs) {
  constexpr int kRounds = 5;
  std::vector<std::string> names = {std::string(name(DType::kF32)), std::string(name(low))};
  names.insert(names.end(), recipes.begin(), recipes.end());
  std::vector<Plan> plans;
  for (const std::string& option : names) plans.push_back(uniform_plan(places, low, option));
  for (size_t place = 0; place < places.size(); ++place) {
    if (places[place].is_layer()) continue;
    for (size_t option = 0; option < places[place].options.size(); ++option) {
      Plan plan = uniform_plan(places, low, std::string(name(low)));
      if (std::exchange(plan[place], static_cast<int>(option)) != static_cast<int>(option)) plans.push_back(plan);
    }
  }
  std::vector<StepCalls> steps;
  for (const Plan& plan : plans) {
    steps.push_back(walk_calls(with_plan(config, low, places, plan), 1, target.fp8_gemm_support, target.packing));
  }
  for (int round = 0; round < kRounds; ++round) costs.measure(steps);
}

void validate(const PlanRunRequest& request, const Config& config, const Target& target, Communicator& communicator,
              PlanAdvice& advice) {
  const std::vector<NamedConfig> against = references(without_fallback(config), advice.low, advice.places);
  ValidationOptions options = request.validation;
  if (advice.of_absent_device) options.time_pairs = 0;
  const auto train = [&](const Config& found) {
    Config plan = without_fallback(found);
    plan.checkpoint.resume = "none";
    return validate_plan(plan, against, options, communicator);
  };
  try_plan(train, config, target, request.ranks, advice);
}

}  // namespace

FoundPlan find_plan(const PlanRunRequest& request, const std::string& title, const Config& config) {
  // What is impossible is found before anything is trained.
  require_recipes(request.plan.recipes);
  const DType low = low_of(config);
  if (request.hardware != nullptr) require_units(*request.hardware, low);
  require_kinds(request.state);
  const std::vector<PlannedPlace> shared = planned_shared(config, low, request.state, request.ranks);
  const std::vector<PlannedPlace> layers = planned_layers(config, low, request.plan.recipes);
  if (request.plan.solver == "enumeration") require_enumerable(layers, shared);
  const auto communicator = start_communicator("local", config.device);
  set_up_threads(config, *communicator);
  const Config exact = tried(in_exact_precision(config));
  std::optional<Session> session(std::in_place, exact, *communicator);
  log_info("plan: {} steps in fp32, then {} batches with one layer lowered at a time", request.warm_up,
           request.batches);
  train(*session, request.warm_up);
  SensitivityRequest looked_at;
  looked_at.target = title;
  looked_at.formats = formats_to_try(low, request.plan.recipes);
  looked_at.batches = request.batches;
  looked_at.probes = 0;
  FoundPlan found{.sensitivity = analyze_sensitivity(looked_at, *session), .advice = {}};
  std::vector<PlannedPlace> places = layers;
  take_known(places, {.low = low, .layers = found.sensitivity, .shared = {}});
  places.insert(places.end(), shared.begin(), shared.end());
  PlanRequest plan = request.plan;
  plan.rest_damage = rest_damage(config, low, layers, request.batches, *session);
  plan.shared_damages = shared_damages(
      config, low, {.windows = request.batches, .ranks = request.ranks, .fp16_scale = found.sensitivity.fp16_scale},
      places, session, *communicator);
  Backend& backend = *session->runtime.backend;
  MeasuredCosts measured(backend, *session->runtime.stream, last_level_cache_bytes());
  const bool packs = config.train.keeps_packed_weights(1) && backend.device().kind == Device::Kind::kCpu;
  Target target{.title = backend.describe(),
                .costs = &measured,
                .fp8_gemm_support = backend.fp8_gemm_support(),
                .packing = packs ? &backend : nullptr};
  std::optional<Roofline> roofline;
  if (request.hardware != nullptr) {
    target = absent_target(*request.hardware, roofline.emplace(*request.hardware));
  }
  if (plan.solver == kDifferentiable) {
    plan.own_search = [&](const PlanProblem& problem, const PlanGoal& goal, const std::vector<PlannedPlace>& left) {
      return search_differentiably(config, low, left, problem, goal,
                                   {.fp16_scale = found.sensitivity.fp16_scale, .seed = plan.seed}, *session);
    };
  }
  if (request.hardware == nullptr) time_uniform_steps(config, low, places, request.plan.recipes, target, measured);
  found.advice = advise_plan(plan, config, places, found.sensitivity, target, request.ranks);
  if (request.validation.most_seeds > 0) validate(request, config, target, *communicator, found.advice);
  return found;
}

}  // namespace mantissa
