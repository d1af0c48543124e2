#include "tools/run/metrics/metrics_prom.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace mantissa {
namespace {

struct Metric {
  const char *name, *type, *help;
  std::optional<double> RunFigures::*value;
};
constexpr std::array kMetrics = {
    Metric{"mantissa_step", "gauge", "Steps done, skipped ones included.", &RunFigures::step},
    Metric{"mantissa_steps_total", "gauge", "Steps of the whole run (train.steps).", &RunFigures::steps_total},
    Metric{"mantissa_loss", "gauge", "Training loss of the last step, nats per token.", &RunFigures::loss},
    Metric{"mantissa_validation_loss", "gauge", "Last validation loss, nats per token.", &RunFigures::validation_loss},
    Metric{"mantissa_gradient_norm", "gauge", "Norm of the gradient before clipping.", &RunFigures::gradient_norm},
    Metric{"mantissa_learning_rate", "gauge", "Learning rate of the last step.", &RunFigures::learning_rate},
    Metric{"mantissa_loss_scale", "gauge", "Loss scale of the last step.", &RunFigures::loss_scale},
    Metric{"mantissa_tokens_per_second", "gauge", "Tokens of all ranks in the last step, over its time.",
           &RunFigures::tokens_per_second},
    Metric{"mantissa_step_seconds", "gauge", "Time of the last step.", &RunFigures::step_seconds},
    Metric{"mantissa_skipped_steps_total", "counter", "Skipped steps since this start.", &RunFigures::skipped_steps},
    Metric{"mantissa_memory_bytes", "gauge", "Memory that rank 0 holds on its device.", &RunFigures::memory_bytes},
    Metric{"mantissa_last_checkpoint_step", "gauge", "Step of the last checkpoint.", &RunFigures::last_checkpoint_step},
    Metric{"mantissa_slow_ranks", "gauge", "Ranks that are slower than the others by straggler.factor.",
           &RunFigures::slow_ranks},
    Metric{"mantissa_warnings_total", "counter", "Warnings and errors of rank 0 since this start.",
           &RunFigures::warnings},
    Metric{"mantissa_heartbeat_timestamp_seconds", "gauge", "Time at which this file was written.",
           &RunFigures::heartbeat},
    Metric{"mantissa_start_timestamp_seconds", "gauge", "Time of this start of the run.", &RunFigures::start},
    Metric{"mantissa_estimated_end_timestamp_seconds", "gauge", "Estimated end of the run.",
           &RunFigures::estimated_end},
};
constexpr const char *kState = "mantissa_state", *kJob = "mantissa_job_info";
constexpr std::array kProgress = {RunProgress::kRunning, RunProgress::kDone, RunProgress::kStopped,
                                  RunProgress::kFailed};

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0.0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string label(const char* name, std::string_view value) {
  std::string text = fmt::format("{}=\"", name);
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string heading(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

// The value of a label, without escapes.
std::string label_of(std::string_view line, const char* name) {
  const std::string start = fmt::format("{}=\"", name);
  const size_t begin = line.rfind(start);
  if (begin == std::string_view::npos) return "";
  const std::string_view value = line.substr(begin + start.size());
  return std::string(value.substr(0, value.find('"')));
}

}  // namespace

std::string_view name(RunProgress progress) {
  constexpr std::array<std::string_view, kProgress.size()> kNames = {"running", "done", "stopped", "failed"};
  return kNames[static_cast<size_t>(progress)];
}

std::string to_prometheus(const RunFigures& figures) {
  const std::string run = label("run", figures.run);
  std::string text;
  for (const Metric& metric : kMetrics) {
    const std::optional<double>& value = figures.*metric.value;
    if (!value) continue;
    text += heading(metric.name, metric.type, metric.help);
    text += fmt::format("{}{{{}}} {}\n", metric.name, run, number(*value));
  }
  text += heading(kState, "gauge", "1 for the state of the run.");
  for (const RunProgress progress : kProgress) {
    text += fmt::format("{}{{{},{}}} {}\n", kState, run, label("state", name(progress)),
                        progress == figures.progress ? 1 : 0);
  }
  text += heading(kJob, "gauge", "Host of rank 0, and Slurm job.");
  text += fmt::format("{}{{{},{},{}}} 1\n", kJob, run, label("host", figures.host), label("job", figures.job));
  return text;
}

RunFigures parse_prometheus(std::string_view text) {
  RunFigures figures;
  while (!text.empty()) {
    const std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t end = line.find('{'), value_at = line.rfind("} ");
    if (line.starts_with('#') || end == std::string::npos || value_at == std::string::npos) continue;
    const std::string_view metric_name = std::string_view(line).substr(0, end);
    const double value = std::strtod(line.c_str() + value_at + 2, nullptr);
    for (const Metric& metric : kMetrics) {
      if (metric_name == metric.name) figures.*metric.value = value;
    }
    for (const RunProgress progress : kProgress) {
      if (metric_name == kState && value == 1.0 && label_of(line, "state") == name(progress)) {
        figures.progress = progress;
      }
    }
    if (metric_name == kJob) {
      figures.host = label_of(line, "host");
      figures.job = label_of(line, "job");
    }
  }
  return figures;
}

}  // namespace mantissa
