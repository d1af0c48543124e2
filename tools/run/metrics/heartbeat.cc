#include "tools/run/metrics/heartbeat.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/io/files.h"
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
    if (c == '"' || c == '\\') text += '\\';
    text += c == '\n' ? "\\n" : std::string(1, c);
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

// Two users may both have a runs/one, read by the same Prometheus.
std::string label_of_run(const std::string& run_dir) {
  std::error_code error;
  const auto path = std::filesystem::absolute(run_dir, error).lexically_normal();
  return error ? run_dir : (path.has_filename() ? path : path.parent_path()).string();
}

// Into the file as it is: on a full disk, the blocks that it has already can still be written. A reader may see a half
// of the new text; that is better than the state of long ago.
bool overwrite_file(const std::string& path, const std::string& text) {
  const int file = why_not_to_write(path).empty() ? ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
  if (file < 0) return false;
  const auto size = static_cast<ssize_t>(text.size());
  const bool is_written = ::write(file, text.data(), text.size()) == size && ::ftruncate(file, size) == 0;
  ::close(file);
  return is_written;
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
  text +=
      fmt::format("{}{}{{{},{},{}}} 1\n", kPrefix, kJob, run, label("host", figures.host), label("job", figures.job));
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

std::optional<RunFigures> read_metrics_prom(const std::string& run_dir) {
  const auto text = text_of_file(run_dir + "/" + kMetricsPromName);
  return text ? std::optional(parse_prometheus(*text)) : std::nullopt;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string to_clock(double seconds) {
  const auto whole = static_cast<int64_t>(seconds > 0.0 ? std::min(seconds, 1e12) : 0.0);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string to_duration(double seconds) {
  return seconds < 60.0 ? "less than a minute" : to_clock(seconds) + " (h:mm:ss)";
}

std::string time_text(double now, std::optional<double> seconds_left) {
  const std::tm today = fmt::localtime(static_cast<std::time_t>(now));
  std::string text = fmt::format("{:%H:%M}", today);
  constexpr double kMostSeconds = 1e10;  // 300 years; a clock beyond has no name
  if (!seconds_left || !(*seconds_left > 0.0 && *seconds_left < kMostSeconds)) return text;
  const std::tm end = fmt::localtime(static_cast<std::time_t>(now + *seconds_left));
  const bool is_today = end.tm_yday == today.tm_yday && end.tm_year == today.tm_year;
  return text + ", ends " + (is_today ? fmt::format("{:%H:%M}", end) : fmt::format("{:%b %d %H:%M}", end));
}

void Pace::add(int64_t steps, double seconds) {
  last_ = Point{.steps = steps, .seconds = seconds};
  if (!first_) first_ = last_;
}

std::optional<double> Pace::seconds_to(int64_t end) const {
  if (!last_ || last_->steps <= first_->steps) return std::nullopt;
  const double of_step = (last_->seconds - first_->seconds) / static_cast<double>(last_->steps - first_->steps);
  return of_step * static_cast<double>(end - last_->steps);
}

Heartbeat::Heartbeat(const std::string& run_dir, int64_t end, RunFigures figures)
    : path_(run_dir + "/" + kMetricsPromName), end_(end), figures_(std::move(figures)) {
  figures_.run = label_of_run(run_dir);
  figures_.host = host_name();
  figures_.job = slurm_job();
  figures_.set("skipped_steps", 0.0);
  figures_.set("start", unix_time());
  write();
}

void Heartbeat::step_done(int64_t steps) {
  pace_.add(steps, std::chrono::duration<double>(Clock::now() - start_).count());
  figures_.set("step", static_cast<double>(steps));
  if (const auto left = pace_.seconds_to(end_)) figures_.set("estimated_end", unix_time() + *left);
}

void Heartbeat::beat() {
  if (std::chrono::duration<double>(Clock::now() - written_).count() >= kSeconds) write();
}

void Heartbeat::end(RunProgress progress) {
  figures_.progress = progress;
  figures_.set("estimated_end", std::nullopt);
  write();
}

void Heartbeat::write() {
  written_ = Clock::now();
  figures_.set("heartbeat", unix_time());
  figures_.set("warnings", static_cast<double>(logged_warnings()));
  const std::string text = to_prometheus(figures_);
  const int error = replace_file(path_, text);
  if (error == 0) return;
  const bool is_written = overwrite_file(path_, text);
  if (std::exchange(has_warned_, true)) return;
  log_warn("{} cannot be {}: {}: training goes on{}", path_, is_written ? "replaced" : "written",
           std::generic_category().message(error), is_written ? ", and writes into the old file" : " without it");
}

}  // namespace mantissa
