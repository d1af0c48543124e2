#include "tools/advise/plan/plan_run.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/advise/device/cache_model.h"
#include "tools/advise/device/measured_costs.h"
#include "tools/advise/plan/differentiable.h"
#include "tools/advise/plan/plan_trials.h"
#include "tools/experiment/candidates.h"
#include "tools/train/launch.h"
#include "tools/train/train_step.h"

namespace mantissa {
namespace {

// Of a training that leaves nothing behind.
Config tried(const Config& given) {
  Config config = in_exact_precision(given);
  config.checkpoint.resume = "none";
  config.probe = {};
  config.test = {};
  config.profile = false;
  config.cuda.graph = false;
  return config;
}

void require_enumerable(const std::vector<PlannedLayer>& layers) {
  double plans = 1.0;
  for (const PlannedLayer& layer : layers) plans *= static_cast<double>(layer.options.size());
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

// What all that no plan decides about does to the loss when it is in 16 bits: its mean and one standard error, as
// layers' damages.
double rest_damage(const Config& config, DType low, const std::vector<PlannedLayer>& layers, int64_t batches,
                   Session& session) {
  LoweredPasses passes(session);
  const Plan all_exact(layers.size(), 0);
  const Config rest = with_plan(config, low, layers, all_exact, WorkingWeights::kFp32);
  passes.make_room(rest);
  const AutocastPolicy policy(rest.autocast());
  std::vector<double> changes;
  for (int64_t batch = 0; batch < batches; ++batch) {
    passes.load(session.next_step + batch);
    const double exact = passes.loss(nullptr);
    changes.push_back(passes.loss(&policy) - exact);
  }
  const Estimate found = estimate(changes);
  if (!std::isfinite(found.error)) {
    throw ConfigError(
        fmt::format("no plan: with linear layers and attention in fp32 and all else in {} the loss is not finite: give "
                    "precision.compute=bf16 for plans, or a model that trains in {} at all",
                    name(low), name(low)));
  }
  return std::max(0.0, found.mean) + found.error;
}

// Precision that is what it is for a whole run.
Config without_fallback(Config config) {
  config.precision_fallback = {};
  FloorPolicy& floor = config.scaler.scaler.floor_policy;
  if (floor == FloorPolicy::kLift || floor == FloorPolicy::kBf16) floor = FloorPolicy::kFault;
  return config;
}

// Those that the plan is compared with: 16 bits first.
std::vector<NamedConfig> references(const Config& config, DType low) {
  const std::vector<std::string> names = {std::string(name(low)), std::string(name(DType::kF32))};
  std::vector<NamedConfig> found;
  for (const std::string& wanted : names) {
    for (const Candidate& candidate : candidates_of(config, names)) {
      if (candidate.name == wanted) found.push_back({.name = wanted, .config = candidate.config});
    }
  }
  return found;
}

// Most calls of any plan are those of some uniform one: each is timed in several rounds, since the device may do other
// work for a while.
void time_uniform_steps(const Config& config, DType low, const std::vector<PlannedLayer>& layers,
                        const std::vector<std::string>& recipes, const Target& target, MeasuredCosts& costs) {
  constexpr int kRounds = 5;
  std::vector<std::string> names = {std::string(name(DType::kF32)), std::string(name(low))};
  names.insert(names.end(), recipes.begin(), recipes.end());
  for (int round = 0; round < kRounds; ++round) {
    for (const std::string& option : names) {
      const Config uniform = with_plan(config, low, layers, uniform_plan(layers, low, option));
      costs.measure(walk_calls(uniform, 1, target.narrow_units, target.packing));
    }
  }
}

void validate(const PlanRunRequest& request, const Config& config, const Target& target, Communicator& communicator,
              PlanAdvice& advice) {
  const std::vector<NamedConfig> against = references(without_fallback(config), advice.low);
  ValidationOptions options = request.validation;
  options.with_times = !advice.of_absent_device;
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
  const std::vector<PlannedLayer> layers = planned_layers(config, low, request.plan.recipes);
  if (request.plan.solver == "enumeration") require_enumerable(layers);
  const auto communicator = start_communicator("local", config.device);
  set_up_threads(config, *communicator);
  const Config exact = tried(config);
  Session session(exact, *communicator);
  log_info("plan: {} steps in fp32, then {} batches with one layer lowered at a time", request.warm_up,
           request.batches);
  train(session, request.warm_up);
  SensitivityRequest looked_at;
  looked_at.target = title;
  looked_at.formats = formats_to_try(low, request.plan.recipes);
  looked_at.batches = request.batches;
  looked_at.probes = 0;
  FoundPlan found{.sensitivity = analyze_sensitivity(looked_at, session), .advice = {}};
  Backend& backend = *session.runtime.backend;
  MeasuredCosts measured(backend, *session.runtime.stream, last_level_cache_bytes());
  const bool packs = config.train.keeps_packed_weights(1) && backend.device().kind == Device::Kind::kCpu;
  Target target{.title = backend.describe(),
                .costs = &measured,
                .narrow_units = backend.narrow_units(),
                .packing = packs ? &backend : nullptr};
  std::optional<Roofline> roofline;
  if (request.hardware != nullptr) {
    target = absent_target(*request.hardware, roofline.emplace(*request.hardware));
  }
  PlanRequest plan = request.plan;
  plan.rest_damage = rest_damage(config, low, layers, request.batches, session);
  if (plan.solver == kDifferentiable) {
    plan.own_search = [&](const PlanProblem& problem, const PlanGoal& goal, const std::vector<PlannedLayer>& left) {
      return search_differentiably(config, low, left, problem, goal,
                                   {.fp16_scale = found.sensitivity.fp16_scale, .seed = plan.seed}, session);
    };
  }
  if (request.hardware == nullptr) time_uniform_steps(config, low, layers, request.plan.recipes, target, measured);
  found.advice = advise_plan(plan, config, layers, found.sensitivity, target, request.ranks);
  if (request.validation.most_seeds > 0) validate(request, config, target, *communicator, found.advice);
  return found;
}

}  // namespace mantissa
