// RunMetrics: what metrics.jsonl tells of a run, read on as it grows.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace mantissa {

struct RunStep {
  int64_t step = 0;  // from 1
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
  // The values of a metric of steps (metric_table.h), one for each step; NaN where it is not finite or not known.
  const std::vector<double>& values(std::string_view metric) const;
  // The other records, in the order of the file.
  const std::vector<nlohmann::json>& events() const { return events_; }
  // Those of this kind: "validation", and the steps that were skipped as "skip", with `step` and `reason`.
  std::vector<const nlohmann::json*> events(const std::string& kind) const;

 private:
  void take(const std::string& line);
  void take_step(const nlohmann::json& record);

  std::string path_;
  uint64_t device_ = 0, inode_ = 0;
  int64_t read_bytes_ = 0;
  std::vector<RunStep> steps_;
  std::map<std::string, std::vector<double>, std::less<>> values_;  // by metric
  std::vector<nlohmann::json> events_;
};

}  // namespace mantissa
