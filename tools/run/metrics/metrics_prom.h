// metrics.prom: the figures of a run in Prometheus' text format, for monitoring and for `mantissa status`.
#pragma once

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

  // By the name of a row of the table, in the units of metrics.jsonl. Nothing: not known yet, and left out of the file.
  // NaN and Inf are values.
  std::optional<double> operator[](std::string_view metric) const;
  void set(std::string_view metric, std::optional<double> value);

 private:
  std::map<std::string, double, std::less<>> values_;
};

std::string to_prometheus(const RunFigures& figures);
// Reads what to_prometheus() wrote, but not the label `run`. Lines that it does not know are passed over.
RunFigures parse_prometheus(std::string_view text);

}  // namespace mantissa
