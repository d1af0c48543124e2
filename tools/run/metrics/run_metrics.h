// RunMetrics: what metrics.jsonl tells of a run, read on as it grows.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mantissa {

// A step; NaN for a figure that is not finite or not known.
struct RunStep {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  int64_t step = 0;  // from 1
  double loss = kUnknown, grad_norm = kUnknown, learning_rate = kUnknown, scale = kUnknown, seconds = kUnknown,
         tokens_per_second = kUnknown, mfu = kUnknown;
  bool applied = true;
  // From the first step of the file to this one.
  double tokens_so_far = 0.0, hours_so_far = 0.0;
};

class RunMetrics {
 public:
  // Nothing is read yet.
  explicit RunMetrics(const std::string& run_dir);

  // Reads the whole lines that the file has gained; all of it again if a start has replaced it. Lines that are no
  // records are passed over. Without a file there are no steps.
  void refresh();

  const std::vector<RunStep>& steps() const { return steps_; }
  // The other records, in the order of the file.
  const std::vector<nlohmann::json>& events() const { return events_; }
  // Those of this kind: "validation", and the steps that were skipped as "skip", with `step` and `reason`.
  std::vector<const nlohmann::json*> events(const std::string& kind) const;

 private:
  void take(const std::string& line);

  std::string path_;
  uint64_t device_ = 0, inode_ = 0;
  int64_t read_bytes_ = 0;
  std::vector<RunStep> steps_;
  std::vector<nlohmann::json> events_;
};

}  // namespace mantissa
