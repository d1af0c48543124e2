// The text that `mantissa watch` shows: of one run its curves, of several a table.
#pragma once

#include <string>
#include <vector>

#include "tools/run/metrics/run_metrics.h"
#include "tools/run/watch/sparkline.h"
#include "tools/run/watch/status_verb.h"

namespace mantissa {

struct WatchedRun {
  std::string path;
  RunStatus status;
  RunMetrics metrics;

  explicit WatchedRun(const std::string& run_dir) : path(run_dir), metrics(run_dir) {}
  // ConfigError if it is not a run folder. `now`: seconds of Unix time.
  void refresh(double now);
  // Whether it may still change by itself.
  bool is_under_way() const;
};

struct FrameStyle {
  size_t columns = 80, rows = 24;
  Glyphs glyphs = Glyphs::kBlocks;
};

// Lines of at most `columns`; as many as fit into `rows`, the verdict first.
std::string watch_frame(const std::vector<WatchedRun>& runs, const FrameStyle& style, double now);

}  // namespace mantissa
