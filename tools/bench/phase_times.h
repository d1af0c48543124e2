// PhaseTimes: how long the device spends in each phase of a step.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/stream_timer.h"
#include "core/profile/range.h"

namespace mantissa {

// The sink of ranges for its life time: marks the stream where a phase begins and ends. Phases must come from one
// thread; ops are not looked at.
class PhaseTimes final : public RangeSink {
 public:
  explicit PhaseTimes(std::unique_ptr<StreamTimer> timer);
  ~PhaseTimes() override;
  PhaseTimes(const PhaseTimes&) = delete;
  PhaseTimes& operator=(const PhaseTimes&) = delete;

  void begin(RangeKind kind, const char* name) override;
  void end(RangeKind kind, const char* name) override;

  // Milliseconds of each phase, summed over its ranges, in the order in which they first ended. A phase within another
  // counts for both. Waits for the stream.
  std::vector<std::pair<std::string, double>> milliseconds();

 private:
  struct Span {
    const char* name;
    size_t from, to;  // marks
  };

  std::unique_ptr<StreamTimer> timer_;
  std::vector<Span> open_, closed_;
  RangeSink* before_;
};

}  // namespace mantissa
