// SpikeDetector: limits above which the loss or the gradient norm of a step is a spike.
//
// The limit is median + z * scale over a window of applied steps, with scale = 1.4826 * MAD. MAD, the median of the
// distances from the median, is not moved by the spikes themselves; 1.4826 = 1 / quantile(3/4) of the normal
// distribution makes it that distribution's standard deviation (Rousseeuw & Croux 1993, "Alternatives to the Median
// Absolute Deviation", J. Am. Stat. Assoc. 88). Only values above the median can be spikes.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "tools/config/config.h"

namespace mantissa {

// Where the values of a window lie.
struct Spread {
  double median = 0.0;
  double scale = 0.0;
  int64_t count = 0;  // of values

  double z(double value) const { return (value - median) / scale; }
};
// Values that are all but equal have a scale of a thousandth of the median: where MAD is 0, every change would be a
// spike. `values` must not be empty.
Spread spread_of(std::vector<double> values);

struct SpikeLimits {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  double loss = kNone, norm = kNone;
  Spread losses{}, norms{};  // of the window, where there are limits
};

// "the loss 9.1034 is 23.1 deviations above 4.2011, the median of 128 steps".
std::string describe(const SpikeLimits& limits, double loss, double norm);

class SpikeDetector {
 public:
  // An applied step.
  struct Sample {
    int64_t step = 0;
    double loss = 0.0, norm = 0.0;
    bool operator==(const Sample&) const = default;
  };

  explicit SpikeDetector(const StopRulesConfig& options);

  // Whether updates of spikes are held back: for every action but a warning.
  bool holds_back() const;
  // The limits of a step, from applied steps up to the one before the last: a GPU plans a step while the one before it
  // runs, and all devices decide alike. None before half of the window is known.
  SpikeLimits limits(int64_t step) const;
  // An applied step. Values that are not finite stay out.
  void record(const Sample& sample);

  // For checkpoints: oldest first. restore() keeps what the window holds.
  std::vector<Sample> state() const { return {samples_.begin(), samples_.end()}; }
  void restore(const std::vector<Sample>& samples);

 private:
  StopRulesConfig options_;
  std::deque<Sample> samples_;  // of the window, and of the step behind it
};

}  // namespace mantissa
