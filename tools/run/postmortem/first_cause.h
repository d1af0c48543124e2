// FirstCause: how a job ended, and the rank with which its end began.
#pragma once

#include <string>
#include <vector>

#include "tools/run/postmortem/run_history.h"

namespace mantissa {

struct FirstCause {
  enum class Kind {
    kDone,
    kStopped,  // early, with a checkpoint
    kRunning,
    kFailed,   // a rank reported an error
    kGone,     // a rank was killed, or lost its node
    kHang,     // a rank stood still, and the watchdog ended the job
    kUnclear,  // all ranks were killed, and none is known to be the first
  };

  Kind kind = Kind::kUnclear;
  std::vector<int> ranks{};    // with which it began; empty: none, or not known
  std::vector<int> waiting{};  // for them
  int64_t unix_ns = 0;         // times in the report are relative to it
  std::string line{};
};

// An error is the first cause if it is the earliest, unless it is one of communication and a rank without an end mark
// was silent before. The watchdog's end is that of the ranks that it found missing. If there is neither, signs of life
// tell which ranks were killed before the others. Times of different nodes are compared by their clocks.
FirstCause find_first_cause(const RunHistory& run);

const char* name(FirstCause::Kind kind);

// "2026-11-27 12:31:05 UTC", in the time zone of the reader.
std::string time_text(int64_t unix_ns);

}  // namespace mantissa
