#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "tools/lab/compare/comparison_report.h"
#include "tools/lab/compare/precision_summary.h"

namespace mantissa {
namespace {

using nlohmann::json;

json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }
json number(const std::optional<double>& value) { return value ? number(*value) : json(nullptr); }

json to_json(const std::optional<Spread>& spread) {
  if (!spread) return nullptr;
  return {{"mean", number(spread->mean)}, {"low", number(spread->low)}, {"high", number(spread->high)}};
}

json to_json(const std::optional<MeanDifference>& found) {
  if (!found) return nullptr;
  json interval = nullptr;
  if (found->interval) interval = {{"low", number(found->interval->low)}, {"high", number(found->interval->high)}};
  return {{"pairs", found->pairs},
          {"mean", number(found->mean)},
          {"stddev", number(found->stddev)},
          {"interval", interval}};
}

json to_json(const PrecisionSummary& found) {
  return {{"runs", found.runs},
          {"succeeded", found.succeeded},
          {"failure", found.failure.empty() ? json(nullptr) : json(found.failure)},
          {"overflow_share", found.overflow_share},
          {"fault_share", found.fault_share},
          {"step_seconds", to_json(found.step_seconds)},
          {"time_ratio", to_json(found.time_ratio)},
          {"tokens_per_second", number(found.tokens_per_second)},
          {"final_loss", to_json(found.loss)},
          {"loss_difference", to_json(found.loss_difference)},
          {"verdict", std::string(name(found.verdict))},
          {"grad_norm", number(found.grad_norm)},
          {"smallest_scale", number(found.smallest_scale)},
          {"last_scale", number(found.last_scale)},
          {"scale_changes", found.scale_changes},
          {"peak_memory_bytes", number(found.peak_memory_bytes)},
          {"memory_ratio", number(found.memory_ratio)},
          {"sent_bytes", found.sent_bytes}};
}

json to_json(const MemoryTable& table) {
  return {{"weights", table.state.weights},
          {"gradients", table.state.gradients},
          {"masters", table.state.masters},
          {"moments", table.state.moments},
          {"activations", table.activations},
          {"buffers", table.state.buffers + table.casts},
          {"packed", table.packed}};
}

json run_json(const TrainingRecord& run, uint64_t seed, int64_t place) {
  json loss = json::array(), norm = json::array(), scale = json::array(), result = json::array(),
       seconds = json::array(), validation = json::array();
  for (const TrainedStep& step : run.steps) {
    loss.push_back(number(step.loss));
    norm.push_back(number(step.grad_norm));
    scale.push_back(number(step.scale));
    result.push_back(std::string(name(step.result)));
    seconds.push_back(step.seconds);
  }
  for (const ValidationLoss& one : run.validation)
    validation.push_back({{"step", one.step}, {"loss", number(one.loss)}});
  return {{"seed", seed},
          {"place", place},
          {"failure", run.succeeded() ? json(nullptr) : json(run.failure)},
          {"final_loss", number(run.final_loss())},
          {"median_step_seconds", number(run.median_step_seconds())},
          {"tokens_per_second", number(run.tokens_per_second())},
          {"peak_memory_bytes", run.peak_memory_bytes},
          {"memory", to_json(run.memory)},
          {"sent_bytes", run.sent_bytes},
          {"validation", validation},
          {"steps", {{"loss", loss}, {"grad_norm", norm}, {"scale", scale}, {"result", result}, {"seconds", seconds}}}};
}

json precision_json(const PrecisionComparison& comparison, size_t index) {
  const PrecisionRuns& precision = comparison.precisions[index];
  json one = {{"name", precision.name},
              {"refusal", precision.refusal.empty() ? json(nullptr) : json(precision.refusal)},
              {"config", to_yaml(precision.config)}};
  if (!precision.refusal.empty()) return one;
  one["summary"] = to_json(summary_of(comparison, index));
  one["runs"] = json::array();
  for (size_t seed = 0; seed < precision.runs.size(); ++seed) {
    one["runs"].push_back(run_json(precision.runs[seed], comparison.seeds[seed], precision.places[seed]));
  }
  return one;
}

}  // namespace

nlohmann::json to_json(const PrecisionComparison& comparison) {
  const ModelConfig& model = comparison.config.model;
  json precisions = json::array();
  for (size_t index = 0; index < comparison.precisions.size(); ++index) {
    precisions.push_back(precision_json(comparison, index));
  }
  return {{"version", 1},
          {"title", comparison.options.title},
          {"setting",
           {{"model",
             fmt::format("{}: {} layers, width {}, context {}", model.name, model.layers, model.width, model.context)},
            {"device", comparison.device},
            {"ranks", comparison.ranks},
            {"seeds", comparison.seeds},
            {"steps", comparison.steps},
            {"level", comparison.options.level},
            {"margin", number(margin_of(comparison))},
            {"margin_is_given", comparison.options.margin.has_value()}}},
          {"baseline", comparison.precisions[comparison.baseline].name},
          {"precisions", precisions}};
}

}  // namespace mantissa
