// metrics.prom: the figures of a run in Prometheus' text format, for monitoring and for `mantissa status`.
#pragma once

#include <cstdint>
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

// Figures that are not known yet are left out of the file. NaN and Inf are figures.
struct RunFigures {
  std::string run;   // absolute path of the run folder: the label of every metric
  std::string host;  // of rank 0
  std::string job;   // of Slurm; empty: none
  RunProgress progress = RunProgress::kRunning;
  std::optional<double> step{}, steps_total{}, loss{}, validation_loss{}, gradient_norm{}, learning_rate{},
      loss_scale{}, tokens_per_second{}, step_seconds{}, skipped_steps{}, memory_bytes{}, last_checkpoint_step{},
      slow_ranks{}, warnings{};
  std::optional<double> heartbeat{}, start{}, estimated_end{};  // seconds of Unix time
};

std::string to_prometheus(const RunFigures& figures);
// Reads what to_prometheus() wrote, but not the label `run`. Lines that it does not know are passed over.
RunFigures parse_prometheus(std::string_view text);

}  // namespace mantissa
