// Stragglers: ranks that are slower than the others, by the time that each spends at work within steps. A slow rank
// makes the others wait; time in which a rank waits for others does not count.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

// The phases of a step that are compared, as tools/train names them. On a GPU they hold the host's part.
inline constexpr std::array<std::string_view, 7> kStepPhases = {"step",   "data",   "forward", "backward",
                                                                "reduce", "decide", "update"};

// Seconds of work in each of kStepPhases.
using PhaseTimes = std::array<double, kStepPhases.size()>;

// A rank that has become slow, or is no longer.
struct StragglerChange {
  int rank = 0;
  bool is_slow = false;
  double seconds = 0.0, others_seconds = 0.0;  // of work in the window, and the median of the other ranks
  // The phase with the largest excess.
  std::string_view phase{};
  double phase_seconds = 0.0, others_phase_seconds = 0.0;
};

class StragglerDetector {
 public:
  static constexpr double kLeastExcess = 1e-3;  // seconds a step: less is noise of the system

  StragglerDetector(const StragglerConfig& options, int ranks);

  // The times of all ranks in a window of so many steps, by rank. A rank becomes slow when it exceeds the median of the
  // others by the factor and by kLeastExcess, and is so until it comes below half of that.
  std::vector<StragglerChange> judge(const std::vector<PhaseTimes>& by_rank, int64_t steps);
  int slow_ranks() const;

 private:
  double factor_;
  std::vector<uint8_t> is_slow_;  // by rank
};

// "rank 3 (node b) is slow: 31.0 ms of work a step, others 14.8 ms; in data 18.0 ms, others 2.1 ms", or "rank 3 (node
// b) is no longer slow". `steps`: of the window.
std::string describe(const StragglerChange& change, const std::string& host, int64_t steps);

}  // namespace mantissa
