// RunHistory: the last events of the ranks of a run, and their ends, as the files in the run folder tell them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/guard/black_box.h"

namespace mantissa {

enum class RankEnd {
  kUnknown,    // no black box that can be read
  kDone,       // exit code 0
  kPreempted,  // exit code 75
  kFailed,     // another exit code
  kHang,       // ended by its watchdog
  kGone,       // no end mark and no process: killed, or its node was lost
  kRunning,    // no end mark, but a process
};

struct RankHistory {
  int rank = 0;
  RankEnd end = RankEnd::kUnknown;
  std::string problem{};    // kUnknown: why
  bool is_damaged = false;  // there is a file that cannot be read
  std::string host{}, job{};
  int64_t pid = 0;
  int exit_code = BlackBoxHeader::kRunning;
  std::string error{};
  int64_t started_ns = 0, ended_ns = 0;  // 0: no end mark
  int64_t beat_ns = 0;                   // the last sign of life of its watchdog; 0: none
  int64_t last_event_ns = 0;
  int64_t seen_ns = 0;                    // the latest of these times
  int64_t step = 0;                       // of the last event
  int64_t steps_done = 0;                 // 0 if this start did none
  int64_t saved_step = -1, saved_ns = 0;  // of the last checkpoint among the events
  std::string phase = "start";            // the innermost
  uint64_t begun = 0;                     // collectives
  std::string stopped_by{};               // the signal or time limit; empty: none
  std::optional<BlackBoxEvent>
      waits_in{};                       // the begin of the newest collective, as for the watchdog, if it has not ended
  std::vector<BlackBoxEvent> events{};  // the last ones, oldest first
};

struct RunHistory {
  std::string run;
  std::vector<RankHistory> ranks;      // one for each rank of the newest start
  std::vector<std::string> left_over;  // boxes of an earlier start with more ranks

  std::vector<int> with(RankEnd end) const;
  bool has_several_hosts() const;
};

// Reads RUN/black_box; `previous`: of the start before the last. ConfigError if `run` is no folder or has no black
// boxes.
RunHistory read_run_history(const std::string& run, bool previous);

// Without control characters, which a terminal might obey; line feeds stay.
std::string printable(std::string_view text);

}  // namespace mantissa
