// RunStatistics: the block at the end of a run, and what of it survives a resume.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/train/train_step.h"

namespace mantissa {

class RunStatistics {
 public:
  void add(const StepReport& report, const std::string& skip_reason);

  // Steps, skipped steps with reasons, history of the loss scale, quantiles of gradient norm and step time.
  std::string to_text(size_t peak_memory_bytes) const;

  // For checkpoints: all of it but the times, which belong to one start of the program.
  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  int64_t applied_ = 0;
  std::vector<std::string> skipped_;                      // "step 12: reason"
  std::vector<std::pair<int64_t, float>> scale_history_;  // step from which on, scale
  std::vector<double> grad_norms_;                        // of applied steps
  std::vector<double> step_ms_;
};

// The q-quantile of the values, q in [0, 1], by linear interpolation; NaN without values.
double quantile(std::vector<double> values, double q);

}  // namespace mantissa
