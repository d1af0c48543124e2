#include "tools/advise/plan/plan_advice.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "tools/advise/search/plan_reasons.h"

namespace mantissa {
namespace {

struct Damage {
  double mean = 0.0, error = 0.0;
};

// What the decisions of an option may do, added up: of each its mean and one standard error above, so that what is not
// known well is not taken for harmless. A loss that falls when something is lowered is noise, or luck that nobody
// should plan with. Nothing where one of them cannot be taken.
std::optional<Damage> damage_of(const std::vector<PrecisionDecision>& decisions,
                                const SensitivityAnalysis& sensitivity) {
  Damage sum;
  for (const PrecisionDecision& decision : decisions) {
    const auto found = std::find_if(sensitivity.decisions.begin(), sensitivity.decisions.end(),
                                    [&](const DecisionScores& one) { return one.decision == decision; });
    MANTISSA_CHECK(found != sensitivity.decisions.end(), "[advise] '{}' was not analysed", name(decision));
    if (!found->refusal.empty() || !std::isfinite(found->loss.mean)) return std::nullopt;
    // Half of the interval of 95 % is two standard errors or more.
    const double error = std::isfinite(found->loss.half_width) ? found->loss.half_width / 2.0 : 0.0;
    sum.mean += std::max(0.0, found->loss.mean) + error;
    sum.error = std::hypot(sum.error, error);
  }
  return sum;
}

// Takes options away that overflow, or that the analysis could not try.
void take_known(std::vector<PlannedLayer>& layers, DType low, const SensitivityAnalysis& sensitivity) {
  for (PlannedLayer& layer : layers) {
    std::erase_if(layer.options, [&](const LayerOption& option) {
      if (damage_of(decisions_of(layer, option, low), sensitivity)) return false;
      layer.refusals.push_back(fmt::format("{} {}: gradients or the loss were not finite", layer.name(), option.name));
      return true;
    });
  }
}

PlanProblem problem_of(const std::vector<PlannedLayer>& layers, DType low, const OptionCosts& costs,
                       const SensitivityAnalysis& sensitivity, StepCost& common) {
  common = costs.low;
  PlanProblem problem;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::vector<StepCost>& changes = costs.changes[i];
    const auto least = [&](double StepCost::*what) {
      double smallest = changes.front().*what;
      for (const StepCost& change : changes) smallest = std::min(smallest, change.*what);
      return smallest;
    };
    // Costs of options count from the least on, which all plans have.
    const StepCost base{.seconds = least(&StepCost::seconds), .bytes = least(&StepCost::bytes)};
    common.seconds += base.seconds;
    common.bytes += base.bytes;
    PlanDecision decision{.name = layers[i].name(), .options = {}};
    for (size_t option = 0; option < layers[i].options.size(); ++option) {
      const Damage damage = *damage_of(decisions_of(layers[i], layers[i].options[option], low), sensitivity);
      decision.options.push_back({.name = layers[i].options[option].name,
                                  .seconds = changes[option].seconds - base.seconds,
                                  .bytes = changes[option].bytes - base.bytes,
                                  .damage = damage.mean,
                                  .damage_error = damage.error});
    }
    problem.decisions.push_back(std::move(decision));
  }
  return problem;
}

WholePlan whole(const std::string& name, const PlanAdvice& advice, const Plan& plan, const Config& config,
                const Target& target, int ranks) {
  const PlanTotals totals = evaluate(advice.problem, plan);
  return {.name = name,
          .cost = step_cost(with_plan(config, advice.low, advice.layers, plan), target, ranks),
          .damage = totals.damage,
          .damage_error = totals.damage_error()};
}

// The options of this name everywhere, or where a layer has none of it, 16 bits.
Plan uniform_plan(const PlanAdvice& advice, const std::string& option) {
  Plan plan;
  for (const PlannedLayer& layer : advice.layers) {
    const auto found = std::find_if(layer.options.begin(), layer.options.end(),
                                    [&](const LayerOption& one) { return one.name == option; });
    const auto low = std::find_if(layer.options.begin(), layer.options.end(),
                                  [&](const LayerOption& one) { return one.name == name(advice.low); });
    plan.push_back(static_cast<int>((found != layer.options.end() ? found : low) - layer.options.begin()));
  }
  return plan;
}

// Searches with what is left of the budget for the parts.
void search(PlanAdvice& advice, const PlanRequest& request) {
  const SearchSettings settings{.seed = request.seed};
  advice.results.clear();
  for (const std::string_view solver : plan_solver_names()) {
    if (solver == "enumeration" && request.solver != solver) continue;  // as many plans as it can do are few
    SearchResult result = make_plan_solver(solver, settings)->solve(advice.problem, advice.goal);
    if (solver == request.solver) advice.chosen = result;
    advice.results.emplace_back(solver, std::move(result));
  }
  if (!request.own_search) return;
  advice.chosen = request.own_search(advice.problem, advice.goal, advice.layers);
  advice.results.emplace_back(request.solver, advice.chosen);
}

// Layers that are lowered together save casts between them, or packing, that none of them saves alone: a plan takes
// other time and memory than its parts add up to. What that comes to is found at the plan and taken off the budget of
// the next search, until a plan is what its parts were said to be. Of those that were met the best is taken.
void search_with_corrections(PlanAdvice& advice, const PlanRequest& request, const Config& config, const Target& target,
                             int ranks) {
  constexpr int kMostSearches = 4;
  constexpr double kClose = 1e-3;  // of the limit
  const bool is_sum = advice.goal.budget == Budget::kLoss;
  const double in_common = advice.goal.budget == Budget::kTime ? advice.common.seconds : advice.common.bytes;
  std::optional<PlanAdvice> best;
  for (int round = 0; round < kMostSearches; ++round) {
    advice.goal.limit = is_sum ? advice.limit : std::max(0.0, advice.limit - in_common - advice.interaction);
    search(advice, request);
    take_plan(advice, advice.chosen.plan, config, target, ranks);
    const bool is_better = !best || (advice.chosen.meets_budget && !best->chosen.meets_budget) ||
                           (advice.chosen.meets_budget == best->chosen.meets_budget &&
                            rank(advice.goal, advice.chosen.totals) < rank(advice.goal, best->chosen.totals));
    if (is_better) best = advice;
    if (is_sum) break;
    const double parts = in_common + quantity(advice.chosen.totals, advice.goal.quantities()[0]);
    const double interaction = limited(advice, advice.plan) - parts;
    if (std::abs(interaction - advice.interaction) <= kClose * advice.limit) break;
    advice.interaction = interaction;
  }
  advice = std::move(*best);
}

}  // namespace

DType low_of(const Config& config) { return config.precision.compute == DType::kF16 ? DType::kF16 : DType::kBF16; }

std::vector<std::string> formats_to_try(DType low, const std::vector<std::string>& recipes) {
  std::vector<std::string> formats = {std::string(name(low))};
  formats.insert(formats.end(), recipes.begin(), recipes.end());
  return formats;
}

double limited(const PlanAdvice& advice, const WholePlan& plan) {
  switch (advice.goal.budget) {
    case Budget::kTime:
      return plan.cost.seconds;
    case Budget::kMemory:
      return plan.cost.bytes;
    case Budget::kLoss:
      break;
  }
  return plan.damage;
}

PlanAdvice advise_plan(const PlanRequest& request, const Config& config, const SensitivityAnalysis& sensitivity,
                       const Target& target, int ranks) {
  PlanAdvice advice;
  advice.low = low_of(config);
  advice.of_absent_device = target.hardware != nullptr;
  advice.layers = planned_layers(config, advice.low, request.recipes);
  take_known(advice.layers, advice.low, sensitivity);
  const OptionCosts costs = option_costs(config, advice.low, advice.layers, target, ranks);
  advice.problem = problem_of(advice.layers, advice.low, costs, sensitivity, advice.common);
  advice.limit = request.budget.limit({.seconds = costs.low.seconds, .bytes = costs.low.bytes});
  advice.goal.budget = request.budget.kind;
  search_with_corrections(advice, request, config, target, ranks);
  advice.front = pareto_front(advice.problem);
  std::vector<std::string> uniform = {std::string(name(DType::kF32)), std::string(name(advice.low))};
  uniform.insert(uniform.end(), request.recipes.begin(), request.recipes.end());
  for (const std::string& option : uniform) {
    advice.uniform.push_back(whole(option, advice, uniform_plan(advice, option), config, target, ranks));
  }
  return advice;
}

void take_plan(PlanAdvice& advice, const Plan& plan, const Config& config, const Target& target, int ranks) {
  advice.chosen.plan = plan;
  advice.chosen.totals = evaluate(advice.problem, plan);
  advice.plan = whole("plan", advice, plan, config, target, ranks);
  advice.chosen.meets_budget = limited(advice, advice.plan) <= advice.limit * (1.0 + 1e-9);
  advice.reasons = plan_reasons(advice.problem, advice.goal, plan);
  advice.config = with_plan(config, advice.low, advice.layers, plan);
}

}  // namespace mantissa
