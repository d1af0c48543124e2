#include <nlohmann/json.hpp>

#include <cmath>

#include "tools/lab/analyze/sensitivity/sensitivity_report.h"

namespace mantissa {
namespace {

nlohmann::json to_json(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(); }

nlohmann::json to_json(const Estimate& estimate) {
  return {{"mean", to_json(estimate.mean)}, {"half_width", to_json(estimate.half_width)}};
}

nlohmann::json to_json(const DecisionScores& one) {
  nlohmann::json json = {
      {"name", name(one.decision)},
      {"layer", one.decision.layer},
      {"op", std::string(name(one.decision.op))},
      {"product", one.decision.product ? nlohmann::json(std::string(name(*one.decision.product))) : nlohmann::json()},
      {"format", one.decision.format}};
  if (!one.refusal.empty()) {
    json["refusal"] = one.refusal;
    return json;
  }
  json["loss"] = to_json(one.loss);
  json["loss_magnitude"] = to_json(one.loss_magnitude);
  json["update_loss"] = to_json(one.update_loss);
  json["gradient_change"] = to_json(one.gradient_change);
  json["parameter_change"] = to_json(one.parameter_change);
  json["fisher"] = to_json(one.fisher);
  json["hessian"] = to_json(one.hessian);
  json["entropy_bits"] = to_json(one.entropy);
  json["information_bits"] = to_json(one.information);
  json["overflow"] = to_json(one.risk.overflow);
  json["underflow"] = to_json(one.risk.underflow);
  json["precision_loss"] = to_json(one.risk.precision);
  json["band"] = std::isnan(one.risk.overflow) ? nlohmann::json() : nlohmann::json(name(one.band));
  return json;
}

nlohmann::json to_json(const ParameterScores& one) {
  return {{"name", one.name},
          {"elements", one.elements},
          {"gradient_rms", to_json(one.gradient_rms)},
          {"gradient_variance", to_json(one.gradient_variance)},
          {"hessian_trace", to_json(one.trace)},
          {"hessian_diagonal", {to_json(one.smallest_diagonal), to_json(one.largest_diagonal)}}};
}

}  // namespace

nlohmann::json to_json(const SensitivityAnalysis& analysis) {
  const SensitivityRequest& request = analysis.request;
  nlohmann::json json = {
      {"target", analysis.title},          {"ranks", analysis.ranks},        {"step", analysis.step},
      {"batches", request.batches},        {"probes", request.probes},       {"rows", request.rows},
      {"low_risk", request.low_risk},      {"high_risk", request.high_risk}, {"learning_rate", analysis.learning_rate},
      {"fp16_scale", analysis.fp16_scale}, {"loss", to_json(analysis.loss)}};
  for (nlohmann::json* list : {&json["decisions"], &json["parameters"]}) *list = nlohmann::json::array();
  for (const DecisionScores& one : analysis.decisions) json["decisions"].push_back(to_json(one));
  for (const ParameterScores& one : analysis.parameters) json["parameters"].push_back(to_json(one));
  const std::vector<NamedScore> scores = analysis.scores();
  for (const NamedScore& a : scores) {
    for (const NamedScore& b : scores) {
      json["rank_correlations"][a.name][b.name] = to_json(rank_correlation(a.values, b.values));
    }
  }
  return json;
}

}  // namespace mantissa
