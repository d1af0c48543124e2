// RecordedRanges: installs itself as a sink of ranges for its lifetime and records them.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "core/profile/range.h"

namespace mantissa::testing {

class RecordedRanges final : public RangeSink {
 public:
  RecordedRanges() : before_(set_range_sink(this)) {}
  ~RecordedRanges() override { set_range_sink(before_); }
  RecordedRanges(const RecordedRanges&) = delete;
  RecordedRanges& operator=(const RecordedRanges&) = delete;

  void begin(RangeKind kind, const char* name) override { write("begin ", kind, name); }
  void end(RangeKind kind, const char* name) override { write("end ", kind, name); }

  // "begin phase forward", "begin op gemm", "end op gemm", ...
  const std::vector<std::string>& events() const { return events_; }
  // Only the events of phases.
  std::vector<std::string> phases() const {
    std::vector<std::string> found;
    for (const std::string& event : events_) {
      if (event.find(" phase ") != std::string::npos) found.push_back(event);
    }
    return found;
  }

 private:
  void write(const char* what, RangeKind kind, const char* name) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::string(what) + (kind == RangeKind::kPhase ? "phase " : "op ") + name);
  }

  RangeSink* const before_;
  std::mutex mutex_;
  std::vector<std::string> events_;
};

}  // namespace mantissa::testing
