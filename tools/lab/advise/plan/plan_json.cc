#include "tools/lab/advise/plan/plan_advice.h"

#include <nlohmann/json.hpp>

namespace mantissa {
namespace {

nlohmann::json to_json(const WholePlan& plan) {
  return {{"name", plan.name},
          {"seconds", plan.cost.seconds},
          {"bytes", plan.cost.bytes},
          {"sent_bytes", plan.cost.sent_bytes},
          {"fits", plan.cost.fits()},
          {"damage", plan.damage},
          {"damage_error", plan.damage_error}};
}

nlohmann::json to_json(const PlanAdvice& advice, const PlanTotals& totals) {
  return {{"seconds", advice.common.seconds + totals.seconds},
          {"bytes", advice.common.bytes + totals.bytes},
          {"damage", advice.rest_damage + totals.damage},
          {"damage_error", totals.damage_error()}};
}

nlohmann::json to_json(const std::optional<MeanDifference>& difference) {
  if (!difference) return {};
  nlohmann::json json = {{"pairs", difference->pairs}, {"mean", difference->mean}, {"interval", nullptr}};
  if (difference->interval) json["interval"] = {difference->interval->low, difference->interval->high};
  return json;
}

nlohmann::json to_json(const ReferenceResult& one) {
  return {{"margin", one.margin},
          {"loss", to_json(one.loss)},
          {"loss_verdict", name(one.loss_verdict)},
          {"log_time", to_json(one.log_time)},
          {"time_verdict", name(one.time_verdict)}};
}

nlohmann::json to_json(const PlanValidation& validation) {
  nlohmann::json json = {{"seeds", validation.seeds},
                         {"steps", validation.steps},
                         {"times_of", validation.times == TimesOf::kTurns ? "turns" : "runs"}};
  if (!validation.failure.empty()) json["failure"] = validation.failure;
  for (const ReferenceResult& one : validation.against) json["against"][one.name] = to_json(one);
  return json;
}

nlohmann::json choices(const PlanAdvice& advice, const Plan& plan) {
  nlohmann::json json = nlohmann::json::object();
  for (size_t i = 0; i < plan.size(); ++i) {
    json[advice.places[i].name()] = advice.places[i].options[static_cast<size_t>(plan[i])].name;
  }
  return json;
}

}  // namespace

nlohmann::json to_json(const PlanAdvice& advice) {
  constexpr const char* kKinds[] = {"time", "memory", "loss"};
  nlohmann::json json = {
      {"budget", {{"kind", kKinds[static_cast<size_t>(advice.goal.budget)]}, {"limit", advice.limit}}},
      {"meets_budget", advice.chosen.meets_budget},
      {"plan", to_json(advice.plan)},
      {"choices", choices(advice, advice.chosen.plan)}};
  json["promotions"] = advice.promotions;
  if (advice.gave_way) json["gave_way"] = to_json(*advice.gave_way);
  json["tolerance"] = advice.tolerance;
  json["plans_priced"] = advice.plans_priced;
  json["is_optimum"] = advice.is_optimum;
  if (advice.validation) json["validation"] = to_json(*advice.validation);
  for (const WholePlan& plan : advice.uniform) json["uniform"].push_back(to_json(plan));
  for (const auto& [solver, result] : advice.results) {
    json["solvers"][solver] = to_json(advice, result.totals);
    json["solvers"][solver]["meets_budget"] = result.meets_budget;
    json["solvers"][solver]["choices"] = choices(advice, result.plan);
  }
  json["front_of_sums"] = {{"plans", advice.front.plans.size()},
                           {"damage_gap", advice.front.damage_gap},
                           {"bytes_gap", advice.front.bytes_gap}};
  for (const PricedPlan& priced : advice.front_plans) {
    json["front"].push_back(to_json(priced.whole));
    json["front"].back()["choices"] = choices(advice, priced.plan);
  }
  for (size_t i = 0; i < advice.places.size(); ++i) {
    nlohmann::json place = {{"name", advice.places[i].name()}, {"reason", advice.reasons[i]}};
    for (const PlanOption& option : advice.problem.decisions[i].options) {
      place["options"].push_back({{"name", option.name},
                                  {"seconds", option.seconds},
                                  {"bytes", option.bytes},
                                  {"damage", option.damage},
                                  {"damage_error", option.damage_error}});
    }
    json["places"].push_back(std::move(place));
  }
  return json;
}

}  // namespace mantissa
