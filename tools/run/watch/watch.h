// `mantissa status RUN`: whether a run is alive, how far it is, when it ends, and its last warnings.
// `mantissa watch RUN...`: the curves of one run, or a table of several, in a terminal, from their folders alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/run/metrics/heartbeat.h"
#include "tools/run/metrics/metric_table.h"
#include "tools/run/metrics/metrics_file.h"

namespace mantissa {

enum class RunHealth : uint8_t {
  // Under way:
  kStarting,  // a job holds the folder, and has not begun to train
  kRunning,
  kSilent,  // the last that is under way: a job holds the folder, but its heartbeat is old
  kDone,
  kStopped,  // early, with a checkpoint
  kFailed,
  kDead,  // no job holds the folder, and no job reported its end
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
// ConfigError if the user may not read them.
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

// Characters that a terminal can show.
enum class Glyphs : uint8_t { kBlocks, kAscii };
// By the locale of the environment.
Glyphs glyphs_of_terminal();

struct CurvePoint {
  double x = 0.0, y = 0.0;
};

struct Sparkline {
  std::vector<std::string> rows;   // from the top
  double least = 0.0, most = 0.0;  // of the values that are drawn, or NaN without any
};

struct SparklineOptions {
  size_t columns = 60, rows = 1;
  double from = 0.0, to = 1.0;  // x of the left and the right edge
  bool logarithmic = false;     // values that are not above 0 are left out
  // The value of a column with several points.
  using Pick = Metric::Watch::Pick;
  Pick pick = Pick::kMean;
  Glyphs glyphs = Glyphs::kBlocks;
};

// Columns filled from below, the highest for the largest value. Values that are not finite are left out, and a column
// without a value continues the one before, from the first value to the last.
Sparkline sparkline(std::span<const CurvePoint> points, const SparklineOptions& options);

// A sign in each column that has a point.
std::string marked_columns(std::span<const CurvePoint> points, const SparklineOptions& options);

struct WatchedRun {
  std::string path;
  RunStatus status;
  RunMetrics metrics;

  explicit WatchedRun(const std::string& run_dir) : path(run_dir), metrics(run_dir) {}
  // ConfigError if it is not a run folder. `now`: seconds of Unix time.
  void refresh(double now);
  // Whether it may still change by itself.
  bool is_under_way() const { return status.health <= RunHealth::kSilent; }
};

struct FrameStyle {
  size_t columns = 80, rows = 24;
  Glyphs glyphs = Glyphs::kBlocks;
};

// Lines of at most `columns`; as many as fit into `rows`, the verdict first.
std::string watch_frame(const std::vector<WatchedRun>& runs, const FrameStyle& style, double now);

struct WatchRequest {
  std::vector<std::string> runs{};
  bool once = false;
  double interval_s = 2.0;  // between two frames
};

// Redraws until no run is under way any more, or a signal ends it: 0. One frame without a terminal. 2 for another
// folder.
int watch_verb(const WatchRequest& request);

}  // namespace mantissa
