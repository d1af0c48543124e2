#include "tools/lab/advise/plan/plan_advice.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/lab/analyze/analyze_verbs.h"

namespace mantissa {
namespace {

constexpr size_t kMostFrontPlans = 48;  // priced as wholes

// "blocks.12.mlp.up" as "blocks.#.mlp.up".
std::string kind_of(const PlannedPlace& place) {
  std::string kind;
  for (const char c : place.name()) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit) kind += c;
    if (is_digit && !kind.ends_with('#')) kind += '#';
  }
  return kind;
}

// By rising time; the first of plans that are alike in everything.
std::vector<WholePlan> undominated(std::vector<WholePlan> plans) {
  const auto key = [](const WholePlan& one) {
    return std::array{one.cost.seconds, one.cost.bytes, one.damage, one.cost.joules};
  };
  std::ranges::stable_sort(plans, {}, key);
  std::vector<WholePlan> kept;
  for (WholePlan& plan : plans) {
    const bool is_beaten = std::ranges::any_of(kept, [&](const WholePlan& other) {
      return other.cost.bytes <= plan.cost.bytes && other.damage <= plan.damage &&
             other.cost.joules <= plan.cost.joules;
    });
    if (!is_beaten) kept.push_back(std::move(plan));
  }
  return kept;
}

// Predicts a step of the whole model for each option, with 16 bits elsewhere. This includes casts, transposes and
// effects on neighbours. Layers that differ only in their block number cost the same. Options count relative to the
// least cost of their decision; the rest is common to all plans. Returns the cost in 16 bits throughout.
StepCost price_options(PlanAdvice& advice, const KnownDamages& damages) {
  const auto cost_of = [&](const std::vector<PlannedPlace>& places, const Plan& plan) {
    return step_cost(with_plan(advice.base, advice.low, places, plan), advice.target, advice.ranks);
  };
  const StepCost low = advice.common = cost_of({}, {});
  std::map<std::pair<std::string, std::string>, StepCost> known;  // by kind and option
  for (const PlannedPlace& place : advice.places) {
    std::vector<PlanOption> options;
    for (const PlaceOption& option : place.options) {
      const auto [entry, is_new] = known.try_emplace({kind_of(place), option.name});
      if (is_new) entry->second = cost_of({place}, {static_cast<int>(options.size())});
      const KnownDamages::Damage damage = damages.of(place, option).value();
      const StepCost& cost = entry->second;
      options.push_back(
          {option.name, cost.seconds, cost.bytes, damage.sum, damage.error, cost.joules, damage.backward});
    }
    for (const auto& [of_option, of_step] :
         {std::pair(&PlanOption::seconds, &StepCost::seconds), std::pair(&PlanOption::bytes, &StepCost::bytes),
          std::pair(&PlanOption::joules, &StepCost::joules)}) {
      const double least = std::ranges::min(options, {}, of_option).*of_option;
      for (PlanOption& option : options) option.*of_option -= least;
      advice.common.*of_step += least - low.*of_step;
    }
    advice.problem.push_back({place.name(), std::move(options)});
  }
  return low;
}

// The part of every plan that no option changes.
WholePlan common_part(const PlanAdvice& advice) {
  return {.name = "common", .choice = {}, .cost = advice.common, .damage = advice.rest_damage};
}

// Places lowered together save casts or packing that no place saves alone, so a plan's cost differs from the sum of its
// parts. Measure the difference at the found plan, subtract it from the budget, and search again until they agree.
// Returns the plans found.
std::vector<Plan> search_with_corrections(PlanAdvice& advice, const PlanRequest& request) {
  constexpr int kMostSearches = 4;
  constexpr double kClose = 1e-3;  // share of the limit
  std::vector<Plan> plans;
  double interaction = 0.0;
  for (int round = 0; round < kMostSearches; ++round) {
    PlanGoal parts = advice.goal;
    parts.limit = std::max(0.0, parts.limit - advice.limited(common_part(advice)) - interaction);
    const SearchResult chosen =
        request.own_search ? request.own_search(advice.problem, parts, advice.places) : solve(advice.problem, parts);
    advice.sums_gap = chosen.gap;
    plans.push_back(chosen.plan);
    const double found = advice.limited(advice.priced("plan", chosen.plan)) - advice.limited_in_parts(chosen.plan);
    if (std::abs(found - interaction) <= kClose * advice.goal.limit) break;
    interaction = found;
  }
  return plans;
}

// Starts from the plans found by sums, the fastest plan with no more damage, uniform plans, and the front.
void search_among_wholes(PlanAdvice& advice, const PlanRequest& request, std::vector<Plan> starts) {
  WholeSearch search{.goal = advice.goal, .tolerance = kHarmNats, .most_plans = request.most_wholes};
  if (advice.target.memory_bytes > 0.0) search.most_bytes = advice.target.memory_bytes;
  for (const PlannedPlace& place : advice.places) search.options.push_back(static_cast<int>(place.options.size()));
  const double damage = evaluate(advice.problem, starts.back()).damage;
  starts.push_back(solve(advice.problem, {.budget = PlanQuantity::kDamage, .limit = damage + kHarmNats}).plan);
  for (const WholePlan& uniform : advice.uniform) starts.push_back(uniform.choice);
  for (const Plan& plan : thinned(advice.front.plans, kMostFrontPlans)) starts.push_back(plan);
  search.starts = std::move(starts);
  search.price = [&](const Plan& plan) { return advice.priced("plan", plan).totals(); };
  const FoundWhole found = search_wholes(search);
  advice.plans_priced = found.plans_priced;
  advice.is_optimum = found.is_optimum;
  advice.take(found.plan);
}

// The plan to fall back to if the present one breaks its promise. It fits into device memory if the present one does.
std::optional<Plan> given_back(const PlanAdvice& advice) {
  const ReferenceResult &low = advice.validation->against[0], &exact = advice.validation->against[1];
  const auto succeeds = [](const ReferenceResult& one) { return one.loss_verdict == ComparisonVerdict::kWorse; };
  const bool fails = !advice.validation->failure.empty() && (succeeds(low) || succeeds(exact));
  if (advice.promotions() == kMostPromotions || !(fails || advice.breaks_promise(exact))) return std::nullopt;
  const std::optional<Plan> plan = promoted(advice.problem, advice.plan.choice);
  const bool fits = !plan || !advice.plan.cost.fits() || advice.priced("plan", *plan).cost.fits();
  return fits ? plan : std::nullopt;
}

bool gives_way(const PlanAdvice& advice) {
  const ReferenceResult& low = advice.validation->against[0];
  const WholePlan& uniform = advice.uniform[1];
  if (advice.gave_way || !uniform.cost.fits() || advice.misses_budget(uniform)) return false;
  const bool is_worse = advice.goal.budget != PlanQuantity::kDamage && low.loss_verdict == ComparisonVerdict::kWorse;
  return is_worse || advice.exceeds_measured(low);
}

}  // namespace

StepCost step_cost(const Config& config, const Target& target, int ranks) {
  const TargetStep step = step_on(target, config, ranks);
  const Prediction prediction = predict(step.calls, *target.costs);
  return {.seconds = prediction.step_seconds(),
          .bytes = static_cast<double>(step.memory.total()),
          .sent_bytes = step.calls.sent(),
          .device_bytes = target.memory_bytes,
          .joules = prediction.joules,
          .most_joules = prediction.most_joules,
          .launches = target.hardware != nullptr ? launches_text(prediction) : ""};
}

WholePlan PlanAdvice::priced(const std::string& name, const Plan& choice) const {
  const PlanTotals totals = evaluate(problem, choice);
  return {.name = name,
          .choice = choice,
          .cost = step_cost(with_plan(base, low, places, choice), target, ranks),
          .damage = rest_damage + totals.damage,
          .damage_error = totals.damage_error()};
}

double PlanAdvice::limited_in_parts(const Plan& choice) const {
  return limited(common_part(*this)) + quantity(evaluate(problem, choice), goal.budget);
}

void PlanAdvice::take(const Plan& choice) {
  plan = priced("plan", choice);
  meets_budget = goal.is_met(plan.totals());
  // The options' reasons speak of sums, but have as much of the budget left as the whole plan. If it misses the budget,
  // no option is within a limit below 0.
  PlanGoal parts = goal;
  const double left = std::max(0.0, goal.limit - limited(plan));
  parts.limit = meets_budget ? quantity(evaluate(problem, choice), goal.budget) + left : -1.0;
  reasons = plan_reasons(problem, parts, choice);
  for (size_t n = 0; n < earlier.size(); ++n) {
    for (size_t i = 0; i < choice.size(); ++i) {
      const int before = earlier[n].choice[i];
      if (before != choice[i]) reasons[i] += fmt::format("; was {} in try {}", problem[i].options[before].name, n + 1);
    }
  }
  config = with_plan(base, low, places, choice);
}

std::optional<Interval> PlanAdvice::measured_seconds(const ReferenceResult& low) const {
  if (!low.log_time || !low.log_time->interval) return std::nullopt;
  const auto [least, most] = *low.log_time->interval;
  const double seconds = uniform[1].cost.seconds;
  return Interval{seconds * std::exp(least), seconds * std::exp(most)};
}

bool PlanAdvice::is_as_fast(const ReferenceResult& low) const {
  return low.time_verdict == ComparisonVerdict::kEqual && goal.is_met(uniform[1].totals());
}

bool PlanAdvice::exceeds_measured(const ReferenceResult& low) const {
  if (goal.budget == PlanQuantity::kDamage) return low.time_verdict == ComparisonVerdict::kWorse;
  const std::optional<Interval> seconds = measured_seconds(low);
  return goal.budget == PlanQuantity::kSeconds && seconds && !is_as_fast(low) && seconds->low > goal.tolerated();
}

const PlanValidation* PlanAdvice::runs_of(const Plan& choice) const {
  if (validation && choice == plan.choice) return &*validation;
  const auto found =
      std::find_if(earlier.rbegin(), earlier.rend(), [&](const TriedPlan& one) { return one.choice == choice; });
  return found == earlier.rend() ? nullptr : &found->validation;
}

std::optional<MeanDifference> PlanAdvice::trained_loss(const Plan& choice) const {
  if (const PlanValidation* const runs = runs_of(choice)) return runs->against.back().loss;
  return validation && choice == uniform[1].choice ? validation->low_loss : std::nullopt;
}

bool PlanAdvice::misses_budget(const WholePlan& one) const {
  if (!goal.is_met(one.totals())) return true;
  const std::optional<MeanDifference> loss = trained_loss(one.choice);
  if (goal.budget == PlanQuantity::kDamage) return loss && loss->interval && loss->interval->low > goal.tolerated();
  const PlanValidation* const runs = runs_of(one.choice);
  return goal.budget == PlanQuantity::kSeconds && runs != nullptr && exceeds_measured(runs->against[0]);
}

bool PlanAdvice::meets_surely() const {
  if (misses_budget()) return false;
  if (goal.budget == PlanQuantity::kDamage) return validation && validation->against.back().is_within(goal.tolerated());
  if (target.hardware != nullptr) {
    if (goal.budget == PlanQuantity::kJoules) return plan.cost.most_joules <= goal.tolerated();
    return goal.budget != PlanQuantity::kSeconds;
  }
  if (goal.budget != PlanQuantity::kSeconds || !validation) return true;
  const ReferenceResult& measured = validation->against[0];
  const std::optional<Interval> seconds = measured_seconds(measured);
  return !seconds || is_as_fast(measured) || seconds->high <= goal.tolerated();
}

bool PlanAdvice::lacks_memory() const {
  return !meets_budget && std::ranges::any_of(front_plans, [&](const WholePlan& one) {
    return !one.cost.fits() && goal.is_met(one.totals());
  });
}

double PlanAdvice::promised_to_runs() const {
  double damage = plan.damage;
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].is_wire()) damage -= problem[i].options[plan.choice[i]].damage;
  }
  return damage;
}

double PlanAdvice::backward_damage(const Plan& choice) const {
  double damage = 0.0;
  for (size_t i = 0; i < choice.size(); ++i) damage += problem[i].options[choice[i]].backward_damage;
  return damage;
}

bool PlanAdvice::breaks_promise(const ReferenceResult& exact) const {
  return exact.loss && exact.loss->interval && exact.loss->interval->low > promised_to_runs();
}

PlanAdvice advise_plan(const PlanRequest& request, const Config& config, std::vector<PlannedPlace> places,
                       const SensitivityAnalysis& sensitivity, const Target& target, int ranks) {
  PlanAdvice advice;
  advice.base = config;
  advice.target = target;
  advice.ranks = ranks;
  advice.low = low_of(config);
  advice.places = std::move(places);
  advice.rest_damage = request.rest_damage;
  advice.goal.budget = request.budget.kind;
  advice.damage = request.damage;
  const KnownDamages damages{.low = advice.low, .layers = sensitivity, .shared = request.shared_damages};
  keep_known(advice.places, damages);
  const StepCost low = price_options(advice, damages);
  advice.goal.limit = request.budget.limit({.seconds = low.seconds, .bytes = low.bytes, .joules = low.joules});
  for (const std::string& name : uniform_names(advice.low, request.recipes)) {
    advice.uniform.push_back(advice.priced(name, uniform_plan(advice.places, advice.low, name)));
  }
  std::vector<Plan> starts = search_with_corrections(advice, request);
  advice.front = pareto_front(advice.problem);
  // The newest allocated plan that meets the budget as a whole. Sums of parts may find none although other plans do.
  const auto newest = std::find_if(starts.rbegin(), starts.rend(), [&](const Plan& plan) {
    return request.damage != DamageScore::kLoss && advice.goal.is_met(advice.priced("plan", plan).totals());
  });
  if (newest != starts.rend()) {
    advice.take(*newest);
  } else {
    search_among_wholes(advice, request, std::move(starts));
  }
  advice.front_plans = {advice.plan};
  advice.front_plans.insert(advice.front_plans.end(), advice.uniform.begin(), advice.uniform.end());
  for (const Plan& plan : thinned(advice.front.plans, kMostFrontPlans)) {
    advice.front_plans.push_back(advice.priced("front", plan));
  }
  advice.front_plans = undominated(std::move(advice.front_plans));
  return advice;
}

void try_plan(const TrainPlan& train, PlanAdvice& advice) {
  const auto replace_by = [&](const Plan& choice) {
    advice.earlier.push_back({advice.plan.choice, advice.promised_to_runs(), *advice.validation});
    advice.take(choice);
  };
  while (true) {
    advice.validation = train(advice.config);
    MANTISSA_CHECK(advice.validation->against.size() == 2, "[try_plan] expected 16 bits and fp32, got {} references",
                   advice.validation->against.size());
    if (const std::optional<Plan> better = given_back(advice)) {
      replace_by(*better);
      log_info("plan: worse than promised: gives options back, {} of {} times", advice.promotions(), kMostPromotions);
    } else if (gives_way(advice)) {
      advice.gave_way = advice.validation->against[0];
      log_info("plan: worse or slower than {} throughout, which meets the budget as well: takes that",
               advice.gave_way->name);
      replace_by(advice.uniform[1].choice);
    } else {
      return;
    }
  }
}

}  // namespace mantissa
