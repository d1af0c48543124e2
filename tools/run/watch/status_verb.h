// `mantissa status RUN`: whether a run is alive, how far it is, when it ends, and its last warnings.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/run/metrics/heartbeat.h"

namespace mantissa {

enum class RunHealth : uint8_t {
  kStarting,  // a job holds the folder, and has not begun to train
  kRunning,
  kSilent,  // a job holds the folder, but its heartbeat is old
  kDone,
  kStopped,  // early, with a checkpoint
  kFailed,
  kDead,  // no job holds the folder, and none said that it ends
};
// "starting", "running", "silent", "done", "stopped", "failed", "dead".
const char* name(RunHealth health);
// 0 done, 10 alive, 11 silent, 12 failed or dead, 75 stopped. Codes below 10 are those of core/base/error.h.
int exit_code(RunHealth health);

// The checkpoint that a new start of a run continues from, if its files are whole.
struct LastCheckpoint {
  int64_t step = -1;  // none
  timespec time{};    // of its manifest
  bool has_unreadable = false;
};
LastCheckpoint last_checkpoint(const std::string& run_dir);

struct RunStatus {
  RunHealth health = RunHealth::kDead;
  std::optional<RunFigures> figures{};  // of the last start that began to train
  double begun = 0.0;                   // Unix time at which a job took the folder last
  LastCheckpoint checkpoint{};
  int64_t warnings = 0;                      // and errors, of all ranks since the last start
  std::vector<std::string> last_warnings{};  // up to kLastWarnings lines, without control characters

  static constexpr size_t kLastWarnings = 3;
};

// Looks at a run folder; changes nothing. `now`: seconds of Unix time. ConfigError if it is not a run folder.
RunStatus read_status(const std::string& run_dir, double now);
// For people, the verdict first, in lines of at most 120 columns.
std::string to_text(const RunStatus& status, double now);
// Figures that are not known, or not finite, are null.
nlohmann::json to_json(const RunStatus& status, double now);

struct StatusRequest {
  std::string run{};
  bool json = false;
};
int status_verb(const StatusRequest& request);

}  // namespace mantissa
