// RunStatistics: the block at the end of a run, and what of it survives a resume. Bounded, however long the run is.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include <nlohmann/json_fwd.hpp>

#include "tools/train/quantiles.h"
#include "tools/train/speed.h"
#include "tools/train/step_report.h"

namespace mantissa {

class RunStatistics {
 public:
  static constexpr size_t kRemembered = 10;  // newest skips and changes of the scale; the metrics file has all

  void add(const StepReport& report, const std::string& skip_reason);

  // Steps, skipped steps with reasons, history of the loss scale, quantiles of gradient norm and step time, the rates
  // of the median step.
  std::string to_text(size_t peak_memory_bytes, const SpeedContext& speed) const;

  // For checkpoints: all of it but the times, which belong to one start of the program.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  int64_t applied_ = 0, skipped_ = 0, scale_changes_ = 0;
  std::deque<std::string> newest_skips_;                 // "step 12: reason"
  std::deque<std::pair<int64_t, float>> newest_scales_;  // step from which on, scale
  LogHistogram grad_norms_;                              // of applied steps
  LogHistogram step_ms_;
};

}  // namespace mantissa
