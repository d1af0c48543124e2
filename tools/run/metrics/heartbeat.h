// metrics.prom: the figures of a run in Prometheus' text format, for monitoring and for `mantissa status`. Heartbeat
// shows others through it that a run is alive, and how far.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace mantissa {

// Files of the run folder that `mantissa status` reads.
inline constexpr const char* kMetricsPromName = "metrics.prom";
inline constexpr const char* kRunLogName = "run.log";
inline constexpr const char* kLockName = "lock";  // held while a job runs

enum class RunProgress : uint8_t { kRunning, kDone, kStopped, kFailed };
// "running", "done", "stopped", "failed".
std::string_view name(RunProgress progress);

// The newest values of the metrics that have a name in Prometheus (metric_table.h).
class RunFigures {
 public:
  std::string run;   // absolute path of the run folder: the label of every metric
  std::string host;  // of rank 0
  std::string job;   // of Slurm; empty: none
  RunProgress progress = RunProgress::kRunning;

  // By a row's name, in units of metrics.jsonl; NaN and Inf are values. Nothing: not known yet, left out of the file.
  std::optional<double> operator[](std::string_view metric) const;
  void set(std::string_view metric, std::optional<double> value);

 private:
  std::map<std::string, double, std::less<>> values_;
};

std::string to_prometheus(const RunFigures& figures);
// Reads what to_prometheus() wrote, but not the label `run`. Lines that it does not know are passed over.
RunFigures parse_prometheus(std::string_view text);
// Those of a run folder; nothing without a file.
std::optional<RunFigures> read_metrics_prom(const std::string& run_dir);

// Seconds of Unix time, now.
double unix_time();
// "1:40:10": hours, minutes, seconds.
std::string to_clock(double seconds);
// For work to come: "1:40:10 (h:mm:ss)", "less than a minute".
std::string to_duration(double seconds);
// "14:02, ends 14:05", "23:02, ends Dec 01 04:05": the time of day and the estimated end, if there is one, in local
// time. `now`: seconds of Unix time.
std::string time_text(double now, std::optional<double> seconds_left);

// Time that steps take, with the evaluations and checkpoints between them: the mean since the first step.
class Pace {
 public:
  // So many steps were done after so many seconds.
  void add(int64_t steps, double seconds);
  // Seconds from the last step to the end of step `end`; nothing before a second step.
  std::optional<double> seconds_to(int64_t end) const;

 private:
  struct Point {
    int64_t steps;
    double seconds;
  };
  std::optional<Point> first_, last_;
};

// Rank 0 only.
class Heartbeat {
 public:
  static constexpr double kSeconds = 2.0;  // between two writes; a file system of a cluster is slow

  // Writes the first file. `end`: the step at which this start ends.
  Heartbeat(const std::string& run_dir, int64_t end, RunFigures figures);

  // Figures of the next write.
  RunFigures& figures() { return figures_; }
  // Counts a step and estimates the end.
  void step_done(int64_t steps);
  // time_text() of now.
  std::string times() const { return time_text(unix_time(), pace_.seconds_to(end_)); }
  // Writes if the last write is kSeconds ago.
  void beat();
  // The last write.
  void end(RunProgress progress);

 private:
  using Clock = std::chrono::steady_clock;

  void write();

  const std::string path_;
  const int64_t end_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point written_ = start_;
  Pace pace_;
  RunFigures figures_;
  bool has_warned_ = false;
};

}  // namespace mantissa
