// Heartbeat: tells others that a run is alive, and how far it is, through metrics.prom. Rank 0 only.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "tools/run/metrics/metrics_prom.h"

namespace mantissa {

// Seconds of Unix time, now.
double unix_time();
// "1:40:10": hours, minutes, seconds.
std::string to_clock(double seconds);
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

// A start found that the run is done: refreshes the file, so that `status` stays at "done".
void still_done(const std::string& run_dir);

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
  std::string times() const;
  // Writes if the last write is kSeconds ago.
  void beat();
  // The last write.
  void end(RunProgress progress);

 private:
  using Clock = std::chrono::steady_clock;

  double elapsed() const;
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
