#include "tools/advise/plan/plan_advice.h"

namespace mantissa {
namespace {

nlohmann::json to_json(const WholePlan& plan) {
  return {{"name", plan.name},
          {"seconds", plan.cost.seconds},
          {"bytes", plan.cost.bytes},
          {"damage", plan.damage},
          {"damage_error", plan.damage_error}};
}

nlohmann::json to_json(const PlanAdvice& advice, const PlanTotals& totals) {
  return {{"seconds", advice.common.seconds + totals.seconds},
          {"bytes", advice.common.bytes + totals.bytes},
          {"damage", totals.damage},
          {"damage_error", totals.damage_error()}};
}

nlohmann::json to_json(const std::optional<MeanDifference>& difference) {
  if (!difference) return {};
  nlohmann::json json = {{"pairs", difference->pairs}, {"mean", difference->mean}, {"interval", nullptr}};
  if (difference->interval) json["interval"] = {difference->interval->low, difference->interval->high};
  return json;
}

nlohmann::json to_json(const PlanValidation& validation) {
  nlohmann::json json = {{"seeds", validation.seeds},
                         {"steps", validation.options.steps},
                         {"times_of", validation.times == TimesOf::kTurns ? "turns" : "runs"}};
  if (!validation.failure.empty()) json["failure"] = validation.failure;
  for (const ReferenceResult& one : validation.against) {
    json["against"][one.name] = {{"margin", one.margin},
                                 {"loss", to_json(one.loss)},
                                 {"loss_verdict", name(one.loss_verdict)},
                                 {"log_time", to_json(one.log_time)},
                                 {"time_verdict", name(one.time_verdict)}};
  }
  return json;
}

nlohmann::json choices(const PlanAdvice& advice, const Plan& plan) {
  nlohmann::json json = nlohmann::json::object();
  for (size_t i = 0; i < plan.size(); ++i) {
    json[advice.layers[i].name()] = advice.layers[i].options[static_cast<size_t>(plan[i])].name;
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
  if (advice.slower) json["slower"] = to_json(advice.slower);
  if (advice.validation) json["validation"] = to_json(*advice.validation);
  for (const WholePlan& plan : advice.uniform) json["uniform"].push_back(to_json(plan));
  for (const auto& [solver, result] : advice.results) {
    json["solvers"][solver] = to_json(advice, result.totals);
    json["solvers"][solver]["meets_budget"] = result.meets_budget;
    json["solvers"][solver]["choices"] = choices(advice, result.plan);
  }
  for (const FrontPlan& plan : advice.front.plans) json["front"].push_back(to_json(advice, plan.totals));
  for (size_t i = 0; i < advice.layers.size(); ++i) {
    nlohmann::json layer = {{"name", advice.layers[i].name()}, {"reason", advice.reasons[i]}};
    for (const PlanOption& option : advice.problem.decisions[i].options) {
      layer["options"].push_back({{"name", option.name},
                                  {"seconds", option.seconds},
                                  {"bytes", option.bytes},
                                  {"damage", option.damage},
                                  {"damage_error", option.damage_error}});
    }
    json["layers"].push_back(std::move(layer));
  }
  return json;
}

}  // namespace mantissa
