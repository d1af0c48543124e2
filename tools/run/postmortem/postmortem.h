// A report on the end of a run, by the files in its folder: first cause, what was lost, last events of its ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

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
  int job_ranks = 0;  // of its job
  RankEnd end = RankEnd::kUnknown;
  std::string problem{};    // kUnknown: why
  bool is_damaged = false;  // there is a file that cannot be read
  std::string host{}, job{};
  int64_t pid = 0;
  int exit_code = BlackBoxHeader::kRunning;
  std::string error{};
  bool output_unread = false;  // it stood still, and nobody read its standard output or error
  // By how much the clock of its node was ahead. All times are corrected by it. Nothing: not known.
  std::optional<int64_t> clock_ahead_ns{};
  int64_t started_ns = 0, ended_ns = 0;  // 0: no end mark
  int64_t beat_ns = 0;                   // the last sign of life of its watchdog; 0: none
  int64_t last_event_ns = 0;
  int64_t seen_ns = 0;                    // the latest of these times
  int64_t step = 0;                       // of the last event
  int64_t steps_done = 0;                 // 0 if this start did none
  int64_t saved_step = -1, saved_ns = 0;  // of the last checkpoint among the events
  std::string phase = "start";            // the innermost
  uint64_t begun = 0;                     // collectives
  uint64_t unfinished = 0;                // the oldest of them that has not ended, else the newest
  std::string stopped_by{};               // the signal or time limit; empty: none
  // The first event of the collective in which it waits.
  std::optional<BlackBoxEvent> waits_in{};
  std::vector<BlackBoxEvent> events{};  // the last ones, oldest first
};

// The last events of the ranks of a run, and their ends.
struct RunHistory {
  std::string run;
  std::vector<RankHistory> ranks;      // one for each rank of the newest start
  std::vector<std::string> left_over;  // boxes of an earlier start with more ranks
  std::string clock_host{};            // the node whose clock gives the times

  std::vector<int> with(RankEnd end) const;
  bool has_several_hosts() const;
};

// Reads RUN/black_box; `previous`: of the start before the last. ConfigError for a folder without black boxes.
RunHistory read_run_history(const std::string& run, bool previous);

// How a job ended, and the rank with which its end began.
struct FirstCause {
  enum class Kind {
    kDone,
    kStopped,  // early, with a checkpoint
    kRunning,
    kFailed,   // a rank reported an error
    kGone,     // a rank was killed, or lost its node
    kHang,     // a rank stood still, and the watchdog ended the job
    kUnclear,  // all ranks or their launcher were killed, and no rank is known to be the first
  };

  Kind kind = Kind::kUnclear;
  std::vector<int> ranks{};    // where it began; empty: no ranks, or not known
  std::vector<int> waiting{};  // for them
  int64_t unix_ns = 0;         // times in the report are relative to it
  std::string line{};
};

// An error is the first cause if it is the earliest, unless it is an error of communication and a rank without an end
// mark was silent before. A watchdog's end has the ranks that it found missing as its cause. If there is neither,
// heartbeats show which ranks were killed before the others. Clocks of nodes are compared by the collectives that their
// ranks left.
FirstCause find_first_cause(const RunHistory& run);

const char* name(FirstCause::Kind kind);

// "2026-11-27 12:31:05 UTC", in the time zone of the reader.
std::string time_text(int64_t unix_ns);

struct PostmortemRequest {
  std::string run{};
  bool previous = false;     // the start before the last
  int64_t events = 10;       // of each rank
  std::vector<int> ranks{};  // whose events are shown; empty: chosen
  std::string html{};        // file; empty: none
};

// title; setting; verdict: kind, line, details; lost; ranks: one row for each; shown: of the ranks with events, their
// events in seconds relative to the first cause, and spans for a chart; hidden: the number of other ranks; stacks:
// files of the watchdog. ConfigError for a rank that the job did not have.
nlohmann::json examine(const RunHistory& run, const PostmortemRequest& request);

// Views of examine().
std::string postmortem_text(const nlohmann::json& figures, int64_t events);
std::string postmortem_page(const nlohmann::json& figures);

// Prints the report and writes the page. Exit code: 2 without black boxes; 3 if one is damaged, after the others.
int postmortem_verb(const PostmortemRequest& request);

}  // namespace mantissa
