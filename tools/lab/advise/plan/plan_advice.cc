#include "tools/lab/advise/plan/plan_advice.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/lab/advise/plan/plan_parts.h"
#include "tools/lab/advise/plan/whole_search.h"
#include "tools/lab/advise/search/plan_reasons.h"

namespace mantissa {

namespace {

PlanTotals totals_of(const WholePlan& plan) {
  return {.seconds = plan.cost.seconds, .bytes = plan.cost.bytes, .damage = plan.damage};
}

}  // namespace

double limited(const PlanAdvice& advice, const WholePlan& plan) {
  return quantity(totals_of(plan), advice.goal.quantities()[0]);
}

namespace {

WholePlan whole(const std::string& name, const PlanAdvice& advice, const Plan& plan, const Config& config,
                const Target& target, int ranks) {
  const PlanTotals totals = evaluate(advice.problem, plan);
  return {.name = name,
          .cost = step_cost(with_plan(config, advice.low, advice.places, plan), target, ranks),
          .damage = advice.rest_damage + totals.damage,
          .damage_error = totals.damage_error()};
}

// The budget of whole plans.
PlanGoal whole_goal(const PlanAdvice& advice) { return {.budget = advice.goal.budget, .limit = advice.limit}; }

// In rising order of time; of plans that are alike in everything the first.
std::vector<PricedPlan> undominated(std::vector<PricedPlan> plans) {
  const auto key = [](const PricedPlan& one) {
    return std::array{one.whole.cost.seconds, one.whole.cost.bytes, one.whole.damage};
  };
  std::ranges::stable_sort(plans, {}, key);
  std::vector<PricedPlan> kept;
  for (PricedPlan& plan : plans) {
    const bool is_beaten = std::ranges::any_of(
        kept, [&](const PricedPlan& other) { return key(other)[1] <= key(plan)[1] && key(other)[2] <= key(plan)[2]; });
    if (!is_beaten) kept.push_back(std::move(plan));
  }
  return kept;
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
  advice.chosen = request.own_search(advice.problem, advice.goal, advice.places);
  advice.results.emplace_back(request.solver, advice.chosen);
}

// Places that are lowered together save casts between them, or packing, that none of them saves alone: a plan takes
// other time and memory than its parts add up to. What that comes to is found at the plan and taken off the budget of
// the next search, until a plan is what its parts were said to be.
void search_with_corrections(PlanAdvice& advice, const PlanRequest& request, const Config& config, const Target& target,
                             int ranks) {
  constexpr int kMostSearches = 4;
  constexpr double kClose = 1e-3;  // of the limit
  const double in_common = advice.goal.budget == Budget::kTime     ? advice.common.seconds
                           : advice.goal.budget == Budget::kMemory ? advice.common.bytes
                                                                   : advice.rest_damage;
  std::optional<PlanAdvice> best;
  for (int round = 0; round < kMostSearches; ++round) {
    const double left = advice.limit - in_common - advice.interaction;
    advice.goal.limit = std::max(0.0, left);
    search(advice, request);
    for (auto& [solver, result] : advice.results) result.meets_budget = result.meets_budget && left >= 0.0;
    take_plan(advice, advice.chosen.plan, config, target, ranks);
    const auto ranked = [](const PlanAdvice& one) { return rank(whole_goal(one), totals_of(one.plan)); };
    if (!best || ranked(advice) < ranked(*best)) best = advice;
    const double parts = in_common + quantity(advice.chosen.totals, advice.goal.quantities()[0]);
    const double interaction = limited(advice, advice.plan) - parts;
    if (std::abs(interaction - advice.interaction) <= kClose * advice.limit) break;
    advice.interaction = interaction;
  }
  advice = std::move(*best);
}

// The fastest plan, by the sums, of those that do no more damage than the chosen one and the tolerance.
Plan fastest_alike(const PlanAdvice& advice, const PlanRequest& request) {
  const PlanGoal alike{.budget = Budget::kLoss, .limit = advice.chosen.totals.damage + request.tolerance};
  return make_plan_solver("knapsack", {.seed = request.seed})->solve(advice.problem, alike).plan;
}

// Some plans of the front of the sums, from one end to the other.
std::vector<Plan> thinned(const ParetoFront& front) {
  constexpr size_t kMost = 48;
  const size_t count = std::min(kMost, front.plans.size());
  std::vector<Plan> plans;
  for (size_t i = 0; i < count; ++i) {
    plans.push_back(front.plans[count == 1 ? 0 : i * (front.plans.size() - 1) / (count - 1)].plan);
  }
  return plans;
}

// From what the sums found, the fastest that is as good, uniform plans, and the front of the sums on.
void search_among_wholes(PlanAdvice& advice, const PlanRequest& request, const Config& config, const Target& target,
                         int ranks) {
  WholeSearch search{.goal = whole_goal(advice), .tolerance = request.tolerance, .most_plans = request.most_wholes};
  if (target.memory_bytes > 0.0) search.most_bytes = target.memory_bytes;
  for (const PlannedPlace& place : advice.places) search.options.push_back(static_cast<int>(place.options.size()));
  search.starts = {advice.chosen.plan, fastest_alike(advice, request)};
  for (const Plan& plan : thinned(advice.front)) search.starts.push_back(plan);
  for (const WholePlan& uniform : advice.uniform)
    search.starts.push_back(uniform_plan(advice.places, advice.low, uniform.name));
  search.price = [&](const Plan& plan) { return totals_of(whole("plan", advice, plan, config, target, ranks)); };
  const FoundWhole found = search_wholes(search);
  advice.tolerance = request.tolerance;
  advice.plans_priced = found.plans_priced;
  advice.is_optimum = found.is_optimum;
  take_plan(advice, found.plan, config, target, ranks);
}

// Some plans of the front of the sums, the chosen one and the uniform ones, those of them that no other one beats.
void price_front(PlanAdvice& advice, const Config& config, const Target& target, int ranks) {
  std::vector<PricedPlan> priced{{.plan = advice.chosen.plan, .whole = advice.plan}};
  for (const WholePlan& uniform : advice.uniform) {
    priced.push_back({.plan = uniform_plan(advice.places, advice.low, uniform.name), .whole = uniform});
  }
  for (const Plan& plan : thinned(advice.front)) {
    priced.push_back({.plan = plan, .whole = whole("front", advice, plan, config, target, ranks)});
  }
  advice.front_plans = undominated(std::move(priced));
}

}  // namespace

DType low_of(const Config& config) { return config.precision.compute == DType::kF16 ? DType::kF16 : DType::kBF16; }

std::vector<std::string> formats_to_try(DType low, const std::vector<std::string>& recipes) {
  std::vector<std::string> formats = {std::string(name(low))};
  formats.insert(formats.end(), recipes.begin(), recipes.end());
  return formats;
}

PlanAdvice advise_plan(const PlanRequest& request, const Config& config, std::vector<PlannedPlace> places,
                       const SensitivityAnalysis& sensitivity, const Target& target, int ranks) {
  PlanAdvice advice;
  advice.low = low_of(config);
  advice.of_absent_device = target.hardware != nullptr;
  advice.places = std::move(places);
  const KnownDamages damages{.low = advice.low, .layers = sensitivity, .shared = request.shared_damages};
  take_known(advice.places, damages);
  const OptionCosts costs = option_costs(config, advice.low, advice.places, target, ranks);
  advice.problem = problem_of(advice.places, costs, damages, advice.common);
  advice.limit = request.budget.limit({.seconds = costs.low.seconds, .bytes = costs.low.bytes});
  advice.goal.budget = request.budget.kind;
  advice.rest_damage = request.rest_damage;
  std::vector<std::string> uniform = {std::string(name(DType::kF32)), std::string(name(advice.low))};
  uniform.insert(uniform.end(), request.recipes.begin(), request.recipes.end());
  for (const std::string& option : uniform) {
    advice.uniform.push_back(
        whole(option, advice, uniform_plan(advice.places, advice.low, option), config, target, ranks));
  }
  search_with_corrections(advice, request, config, target, ranks);
  advice.front = pareto_front(advice.problem);
  search_among_wholes(advice, request, config, target, ranks);
  price_front(advice, config, target, ranks);
  return advice;
}

void take_plan(PlanAdvice& advice, const Plan& plan, const Config& config, const Target& target, int ranks) {
  advice.chosen.plan = plan;
  advice.chosen.totals = evaluate(advice.problem, plan);
  advice.plan = whole("plan", advice, plan, config, target, ranks);
  advice.chosen.meets_budget = whole_goal(advice).is_met(totals_of(advice.plan));
  // A whole that meets the budget may have a sum of parts that does not, and the other way round. What is said of
  // single options follows the whole: where it misses the budget, none of them is within a limit below 0.
  PlanGoal goal = advice.goal;
  goal.limit =
      advice.chosen.meets_budget ? std::max(goal.limit, quantity(advice.chosen.totals, goal.quantities()[0])) : -1.0;
  advice.reasons = plan_reasons(advice.problem, goal, plan);
  advice.config = with_plan(config, advice.low, advice.places, plan);
}

void take_uniform(PlanAdvice& advice, const std::string& option, const Config& config, const Target& target,
                  int ranks) {
  take_plan(advice, uniform_plan(advice.places, advice.low, option), config, target, ranks);
}

bool fits_low(const PlanAdvice& advice) {
  const WholePlan& low = advice.uniform[1];
  return low.cost.fits() && whole_goal(advice).is_met(totals_of(low));
}

bool exceeds_measured(const PlanAdvice& advice, const ReferenceResult& low) {
  if (advice.goal.budget == Budget::kMemory || !low.log_time || low.time_verdict != ComparisonVerdict::kWorse) {
    return false;
  }
  const double least = advice.uniform[1].cost.seconds * std::exp(low.log_time->interval->low);
  return advice.goal.budget == Budget::kLoss || least > advice.limit;
}

bool lacks_memory(const PlanAdvice& advice) {
  return !advice.chosen.meets_budget && std::ranges::any_of(advice.front_plans, [&](const PricedPlan& one) {
    return !one.whole.cost.fits() && whole_goal(advice).is_met(totals_of(one.whole));
  });
}

double promised_to_runs(const PlanAdvice& advice) {
  double damage = advice.plan.damage;
  for (size_t i = 0; i < advice.places.size(); ++i) {
    const PlannedPlace& place = advice.places[i];
    if (!place.is(SharedFormat::kWire)) continue;
    damage -= advice.problem.decisions[i].options[static_cast<size_t>(advice.chosen.plan[i])].damage;
  }
  return damage;
}

bool breaks_promise(const PlanAdvice& advice, const ReferenceResult& exact) {
  return exact.loss && exact.loss->interval && exact.loss->interval->low > promised_to_runs(advice);
}

}  // namespace mantissa
