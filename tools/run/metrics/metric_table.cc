#include "tools/run/metrics/metric_table.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

using nlohmann::json;
using Line = Metric::Line;
using Part = Metric::Line::Part;
using Pick = Metric::Watch::Pick;
using Figures = const StepFigures&;

// A rate or share that is 0 is not known.
json known(double value) { return value > 0.0 ? json(value) : json(nullptr); }
template <typename Value>
json known(const std::optional<Value>& value) {
  return value ? json(*value) : json(nullptr);
}

std::string loss_text(double value) {
  const double size = std::abs(value);
  return size == 0.0 || (size >= 1e-3 && size < 1e5) ? fmt::format("{:.4f}", value) : fmt::format("{:.4g}", value);
}
std::string norm_text(double value) {
  const double norm = std::abs(value);  // NaN may have a sign
  return "norm " + (norm < 1000.0 ? fmt::format("{:.3f}", norm) : fmt::format("{:.4g}", norm));
}
// "scale 65536", "scale 2^24".
std::string scale_text(double scale) {
  int exponent = 0;
  if (scale == 1.0) return "";
  const bool is_power_of_two = std::frexp(scale, &exponent) == 0.5;
  return "scale " +
         (scale >= 1e5 && is_power_of_two ? fmt::format("2^{}", exponent - 1) : fmt::format("{:.5g}", scale));
}
std::string duration_text(double ms) {
  if (ms < 100.0) return fmt::format("{:.1f} ms", ms);
  return ms < 1e4 ? fmt::format("{:.0f} ms", ms) : fmt::format("{:.1f} s", 1e-3 * ms);
}
std::string skipped_text(double steps) { return steps > 0.0 ? fmt::format("skipped steps: {:.0f}", steps) : ""; }
std::string mfu_text(double share) { return fmt::format("MFU {:.{}f}%", 100.0 * share, share < 0.1 ? 1 : 0); }

constexpr std::array kMetrics = {
    Metric{.name = "step",
           .meaning = "its number",
           .of_step = [](Figures f) -> json { return f.report.step + 1; },
           .prometheus = {"step", "gauge", "Steps done, skipped ones included."}},
    Metric{.name = "steps_total",
           .prometheus = {"steps_total", "gauge", "Steps of the whole run (train.steps)."},
           .status = "steps"},
    Metric{.name = "loss",
           .unit = "nats/token",
           .meaning = "mean over the tokens of the global batch",
           .of_step = [](Figures f) -> json { return f.report.lacks_targets() ? json(nullptr) : json(f.report.loss); },
           .tag = "train/loss",
           .prometheus = {"loss", "gauge", "Training loss of the last step, nats per token."},
           .line = {.text = [](double value) { return "loss " + loss_text(value); }},
           .watch = {.curve = "loss", .column = "loss", .text = loss_text},
           .chart = {.title = "Training loss, nats per token", .panel = "loss"}},
    Metric{.name = "validation_loss",
           .event = "validation",
           .field = "loss",
           .tag = "validation/loss",
           .prometheus = {"validation_loss", "gauge", "Last validation loss, nats per token."},
           .line = {.part = Part::kStatus, .text = [](double value) { return "validation loss: " + loss_text(value); }},
           .watch = {.curve = "validation loss", .column = "validation", .text = loss_text},
           .chart = {.title = "Validation loss, nats per token", .panel = "loss", .series = "evaluations"}},
    Metric{.name = "grad_norm",
           .meaning = "of the unscaled gradient, before clipping",
           .of_step = [](Figures f) -> json { return f.report.grad_norm; },
           .tag = "train/grad_norm",
           .prometheus = {"gradient_norm", "gauge", "Norm of the gradient before clipping."},
           .line = {.text = norm_text},
           .watch = {.curve = "gradient norm", .column = "norm", .pick = Pick::kLargest, .is_logarithmic = true},
           .chart = {.title = "Gradient norm", .panel = "gradients", .is_logarithmic = true}},
    Metric{.name = "clip_factor",
           .meaning = "by which clipping multiplied the gradient; 1: not clipped",
           .of_step = [](Figures f) -> json { return f.report.clip_factor; }},
    Metric{.name = "lr",
           .meaning = "learning rate",
           .of_step = [](Figures f) -> json { return f.report.learning_rate; },
           .tag = "train/learning_rate",
           .prometheus = {"learning_rate", "gauge", "Learning rate of the last step."},
           .line = {.text = [](double value) { return fmt::format("lr {:.1e}", value); }},
           .chart = {.title = "Learning rate", .panel = "gradients"}},
    Metric{.name = "scale",
           .meaning = "loss scale of this step",
           .of_step = [](Figures f) -> json { return f.report.scale; },
           .tag = "train/loss_scale",
           .prometheus = {"loss_scale", "gauge", "Loss scale of the last step."},
           .line = {.text = scale_text},
           .watch = {.curve = "loss scale", .pick = Pick::kSmallest, .is_logarithmic = true, .needs_change = true},
           .chart = {.title = "Loss scale", .panel = "scale", .is_power_of_2 = true}},
    Metric{.name = "next_scale",
           .meaning = "loss scale after it",
           .of_step = [](Figures f) -> json { return f.report.next_scale; }},
    Metric{.name = "applied",
           .unit = "true, false",
           .meaning = "whether the weights were updated",
           .of_step = [](Figures f) -> json { return f.report.applied; }},
    Metric{.name = "tokens",
           .meaning = "that count in the loss",
           .of_step = [](Figures f) -> json { return f.report.tokens; }},
    Metric{.name = "ms",
           .unit = "ms",
           .meaning = "duration",
           .of_step = [](Figures f) -> json { return 1e3 * f.report.seconds; },
           .tag = "throughput/step_ms",
           .prometheus = {"step_seconds", "gauge", "Time of the last step.", 1e3},
           .line = {.part = Part::kSpeed, .text = duration_text, .leave_out = 1}},
    Metric{.name = "tokens_per_second",
           .unit = "1/s",
           .meaning = "of all ranks",
           .of_step = [](Figures f) -> json { return f.speed.tokens_per_second(f.report.seconds); },
           .tag = "throughput/tokens_per_second",
           .prometheus = {"tokens_per_second", "gauge", "Tokens of all ranks in the last step, over its time."},
           .line = {.part = Part::kSpeed, .text = [](double value) { return in_thousands(value) + " tok/s"; }},
           .watch = {.curve = "tokens/s", .column = "tok/s", .text = in_thousands},
           .chart = {.title = "Tokens per second", .panel = "speed", .column = "tokens/s", .starts_at_0 = true}},
    Metric{.name = "mfu_of_gemm_peak",
           .unit = "0 to 1",
           .meaning = "arithmetic of the model over the measured peak",
           .of_step = [](Figures f) -> json { return known(f.speed.mfu_of_gemm_peak(f.report.seconds)); },
           .tag = "throughput/mfu",
           .or_else = "mfu_of_datasheet",
           .line = {.part = Part::kSpeed, .text = mfu_text, .leave_out = 2},
           .chart = {.title = "Model FLOP utilisation",
                     .panel = "speed",
                     .series = "mfu",
                     .column = "MFU",
                     .starts_at_0 = true,
                     .is_share = true}},
    Metric{.name = "mfu_of_datasheet",
           .unit = "0 to 1",
           .meaning = "the same over the data sheet",
           .of_step = [](Figures f) -> json { return known(f.speed.mfu_of_datasheet(f.report.seconds)); },
           .tag = "throughput/mfu_of_datasheet"},
    Metric{.name = "skipped_steps",
           .tag = "train/skipped",
           .prometheus = {"skipped_steps_total", "counter", "Skipped steps since this start."},
           .status = "skipped_steps",
           .line = {.part = Part::kStatus, .text = skipped_text}},
    Metric{.name = "memory_bytes",
           .unit = "bytes",
           .meaning = "held by rank 0",
           .of_step = [](Figures f) -> json { return f.memory_bytes; },
           .tag = "memory/bytes",
           .prometheus = {"memory_bytes", "gauge", "Memory that rank 0 holds on its device."}},
    Metric{.name = "skip_reason",
           .unit = "text",
           .meaning = "only if `applied` is false",
           .of_step = [](Figures f) -> json { return f.report.applied ? json(nullptr) : json(f.skip_reason); },
           .is_seldom = true},
    Metric{.name = "spike",
           .unit = "text",
           .meaning = "only if `stop_rules` takes the step for a spike",
           .of_step = [](Figures f) -> json { return known(f.report.spike); },
           .is_seldom = true},
    Metric{.name = "curvature",
           .meaning = "only with `precision.adaptive.curvature`",
           .of_step = [](Figures f) -> json { return known(f.report.curvature); },
           .is_seldom = true,
           .tag = "train/curvature"},
    Metric{.name = "gradient_noise",
           .meaning = "only with `precision.adaptive.gradient_noise`",
           .of_step = [](Figures f) -> json { return known(f.report.gradient_noise); },
           .is_seldom = true,
           .tag = "train/gradient_noise"},
    Metric{.name = "last_checkpoint_step",
           .prometheus = {"last_checkpoint_step", "gauge", "Step of the last checkpoint."},
           .status = ""},
    Metric{.name = "slow_ranks",
           .prometheus = {"slow_ranks", "gauge", "Ranks that are slower than the others; only with several ranks."},
           .status = ""},
    Metric{.name = "slow_links",
           .prometheus = {"slow_links", "gauge", "Slow links between nodes; only with several ranks."},
           .status = ""},
    Metric{.name = "warnings",
           .prometheus = {"warnings_total", "counter", "Warnings and errors of rank 0 since this start."},
           .status = ""},
    Metric{.name = "heartbeat",
           .prometheus = {"heartbeat_timestamp_seconds", "gauge", "Unix time at which this file was written."},
           .status = ""},
    Metric{.name = "start",
           .prometheus = {"start_timestamp_seconds", "gauge", "Unix time of this start of the run."},
           .status = "start_time"},
    Metric{.name = "estimated_end",
           .prometheus = {"estimated_end_timestamp_seconds", "gauge",
                          "Unix time of the estimated end; only while it runs."},
           .status = "estimated_end_time"},
};

// The metrics of one part of a line, without metrics whose `leave_out` is 1 to `left_out`.
std::string part_of_line(const StepFigures& figures, Part part, int left_out) {
  std::string line;
  for (const Metric& row : kMetrics) {
    if (row.line.text == nullptr || row.line.part != part) continue;
    if (row.line.leave_out > 0 && row.line.leave_out <= left_out) continue;
    auto value = value_of(row, figures);
    if (!value && row.or_else != nullptr) value = value_of(metric(row.or_else), figures);
    const std::string text = value ? row.line.text(*value) : "";
    if (!text.empty()) line += (line.empty() ? "" : ", ") + text;
  }
  return line;
}

}  // namespace

std::string in_thousands(double value) {
  if (value >= 1e6) return fmt::format("{:.2f}M", 1e-6 * value);
  return value >= 1e3 ? fmt::format("{:.1f}k", 1e-3 * value) : fmt::format("{:.0f}", value);
}

std::string in_four_digits(double value) {
  if (std::isnan(value)) return "-";
  return std::abs(value) >= 1e5 || (value != 0.0 && std::abs(value) < 1e-3) ? fmt::format("{:.3g}", value)
                                                                            : fmt::format("{:.4g}", value);
}

std::span<const Metric> metrics() { return kMetrics; }

const Metric& metric(std::string_view name) {
  const auto* const found = std::ranges::find_if(kMetrics, [name](const Metric& row) { return row.name == name; });
  MANTISSA_CHECK(found != kMetrics.end(), "[metrics] there is no metric '{}'", name);
  return *found;
}

std::optional<double> value_of(const Metric& metric, const StepFigures& figures) {
  const json value = metric.of_step(figures);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

json step_json(const StepFigures& figures) {
  json record = {{"event", "step"}};
  for (const Metric& row : kMetrics) {
    if (row.of_step == nullptr) continue;
    json value = row.of_step(figures);
    if (!value.is_null() || !row.is_seldom) record[row.name] = std::move(value);
  }
  return record;
}

std::string step_line(const StepFigures& figures, int64_t steps, const std::string& time) {
  std::string line;
  for (int left_out = 0; left_out <= 2; ++left_out) {
    line = fmt::format("step {}/{} | {} | {} | {}", figures.report.step + 1, steps,
                       part_of_line(figures, Part::kResult, left_out), part_of_line(figures, Part::kSpeed, left_out),
                       time);
    if (line.size() <= kTextColumns) break;
  }
  return line;
}

}  // namespace mantissa
