// Statistics of all steps of a run, in bounded memory however long it is.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/run/metrics/speed.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa {

// Counts positive values in bins that are 1 % wide: a quantile is exact to 0.5 % of its value; minimum and maximum are
// exact.
class LogHistogram {
 public:
  // Values that are not finite or not above 0 count in the smallest bin.
  void add(double value);
  int64_t count() const { return count_; }
  // q in [0, 1]; NaN without values.
  double quantile(double q) const;

 private:
  friend void to_json(nlohmann::json& json, const LogHistogram& histogram);
  friend void from_json(const nlohmann::json& json, LogHistogram& histogram);

  std::map<int32_t, int64_t> bins_;  // by floor(log(value) / log(1.01))
  int64_t count_ = 0;
  double min_ = 0.0, max_ = 0.0;
};

// The q-quantile of a few values, by linear interpolation; NaN without values.
double quantile(std::vector<double> values, double q);

// The block at the end of a run.
class RunStatistics {
 public:
  static constexpr size_t kRemembered = 10;  // newest skips and changes of the scale; the metrics file has all

  void add(const StepReport& report, const std::string& skip_reason);

  // Steps, skipped steps with reasons, history of the loss scale, quantiles of gradient norm and step time, the rates
  // of the median step.
  std::string to_text(size_t peak_memory_bytes, const SpeedContext& speed) const;

 private:
  // For checkpoints: all but the step times, which belong to one start of the program.
  friend void to_json(nlohmann::json& json, const RunStatistics& statistics);
  friend void from_json(const nlohmann::json& json, RunStatistics& statistics);

  int64_t applied_ = 0, skipped_ = 0, scale_changes_ = 0;
  std::deque<std::string> newest_skips_;                 // "step 12: reason"
  std::deque<std::pair<int64_t, float>> newest_scales_;  // first step, scale
  LogHistogram grad_norms_;                              // of applied steps
  LogHistogram step_ms_;
};

}  // namespace mantissa
