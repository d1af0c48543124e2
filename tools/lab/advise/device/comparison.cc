#include "tools/lab/advise/device/comparison.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "tools/train/statistics.h"

namespace mantissa {
namespace {

constexpr double kShown = 0.002;  // of the step: what takes less has no line

}  // namespace

double Comparison::measured() const { return quantile(steps, 0.5); }

Comparison compare(const std::string& precision, const Prediction& prediction, std::vector<double> steps,
                   const OpTimes& times) {
  Comparison comparison{
      .precision = precision, .steps = std::move(steps), .predicted = prediction.step_seconds(), .ops = {}};
  std::map<std::pair<std::string_view, std::string_view>, ComparedOp> ops;
  for (const OpCost& cost : prediction.ops) ops[{cost.phase, cost.op}].predicted += cost.seconds;
  for (const OpTime& row : times.rows()) {
    if (!row.beside) ops[{row.phase, row.op}].measured += 1e-3 * row.ms / static_cast<double>(times.steps());
  }
  for (auto& [key, op] : ops) {
    op.phase = key.first;
    op.op = key.second;
    comparison.ops.push_back(op);
  }
  std::stable_sort(comparison.ops.begin(), comparison.ops.end(),
                   [](const ComparedOp& a, const ComparedOp& b) { return a.measured > b.measured; });
  return comparison;
}

std::string to_text(const Comparison& comparison) {
  const auto ms = [](double seconds) { return 1e3 * seconds; };
  std::string text = fmt::format(
      "\npredicted against measured, {}: {:.3f} ms a step against {:.3f} ({:.3f} - {:.3f}, {} steps), ratio {:.3f}\n",
      comparison.precision, ms(comparison.predicted), ms(comparison.measured()), ms(quantile(comparison.steps, 0.0)),
      ms(quantile(comparison.steps, 1.0)), comparison.steps.size(), comparison.ratio());
  text += fmt::format("{:<10}{:<26}{:>13}{:>13}{:>9}", "phase", "operation", "predicted ms", "measured ms", "ratio");
  for (const ComparedOp& op : comparison.ops) {
    if (std::max(op.predicted, op.measured) < kShown * comparison.measured()) continue;
    text += fmt::format("\n{:<10}{:<26}{:>13.3f}{:>13.3f}", op.phase, op.op.empty() ? "(no operation)" : op.op,
                        ms(op.predicted), ms(op.measured));
    if (op.measured > 0.0 && !op.op.empty()) text += fmt::format("{:>9.3f}", op.predicted / op.measured);
  }
  return text + "\n";
}

nlohmann::json to_json(const Comparison& comparison) {
  nlohmann::json json = {{"precision", comparison.precision},
                         {"predicted_seconds", comparison.predicted},
                         {"measured_seconds", comparison.measured()},
                         {"steps_seconds", comparison.steps},
                         {"ratio", comparison.ratio()},
                         {"ops", nlohmann::json::array()}};
  for (const ComparedOp& op : comparison.ops) {
    json["ops"].push_back(
        {{"phase", op.phase}, {"op", op.op}, {"predicted_seconds", op.predicted}, {"measured_seconds", op.measured}});
  }
  return json;
}

}  // namespace mantissa
