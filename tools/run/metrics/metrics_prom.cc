#include "tools/run/metrics/metrics_prom.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "tools/run/metrics/metric_table.h"

namespace mantissa {
namespace {

constexpr std::string_view kPrefix = "mantissa_", kState = "state", kJob = "job_info";
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

std::string heading(std::string_view name, const char* type, const char* help) {
  return fmt::format("# HELP {0}{1} {2}\n# TYPE {0}{1} {3}\n", kPrefix, name, help, type);
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

std::optional<double> RunFigures::operator[](std::string_view metric) const {
  const auto found = values_.find(mantissa::metric(metric).name);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

void RunFigures::set(std::string_view metric, std::optional<double> value) {
  const char* const name = mantissa::metric(metric).name;
  if (value) {
    values_[name] = *value;
  } else {
    values_.erase(name);
  }
}

std::string to_prometheus(const RunFigures& figures) {
  const std::string run = label("run", figures.run);
  std::string text;
  for (const Metric& metric : metrics()) {
    const auto& [name, type, help, units] = metric.prometheus;
    const std::optional<double> value = name == nullptr ? std::nullopt : figures[metric.name];
    if (!value) continue;
    text += heading(name, type, help);
    text += fmt::format("{}{}{{{}}} {}\n", kPrefix, name, run, number(*value / units));
  }
  text += heading(kState, "gauge", "1 for the state of the run.");
  for (const RunProgress progress : kProgress) {
    text += fmt::format("{}{}{{{},{}}} {}\n", kPrefix, kState, run, label("state", name(progress)),
                        progress == figures.progress ? 1 : 0);
  }
  text += heading(kJob, "gauge", "Host of rank 0, and Slurm job.");
  text += fmt::format("{}{}{{{},{},{}}} 1\n", kPrefix, kJob, run, label("host", figures.host), label("job", figures.job));
  return text;
}

RunFigures parse_prometheus(std::string_view text) {
  RunFigures figures;
  while (!text.empty()) {
    const std::string line(text.substr(0, text.find('\n')));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t end = line.find('{'), value_at = line.rfind("} ");
    if (!line.starts_with(kPrefix) || end == std::string::npos || value_at == std::string::npos) continue;
    const std::string_view metric_name = std::string_view(line).substr(0, end).substr(kPrefix.size());
    const double value = std::strtod(line.c_str() + value_at + 2, nullptr);
    for (const Metric& metric : metrics()) {
      const auto& prometheus = metric.prometheus;
      if (prometheus.name != nullptr && metric_name == prometheus.name) {
        figures.set(metric.name, prometheus.units * value);
      }
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
