#include "tools/run/metrics/run_metrics.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "tools/run/metrics/metric_table.h"

namespace mantissa {

RunMetrics::RunMetrics(const std::string& run_dir) : path_(run_dir + "/metrics.jsonl") {
  for (const Metric& row : metrics()) {
    if (row.of_step != nullptr) values_[row.name];
  }
}

const std::vector<double>& RunMetrics::values(std::string_view metric) const {
  return values_.find(mantissa::metric(metric).name)->second;
}

void RunMetrics::refresh() {
  struct stat file {};
  const bool exists = ::stat(path_.c_str(), &file) == 0;
  // A resumed run replaces the file by one without the steps behind its checkpoint.
  if (!exists || file.st_dev != device_ || file.st_ino != inode_ || file.st_size < read_bytes_) {
    read_bytes_ = 0;
    steps_.clear();
    for (auto& [name, values] : values_) values.clear();
    events_.clear();
  }
  device_ = file.st_dev;
  inode_ = file.st_ino;
  if (!exists || file.st_size == read_bytes_) return;
  std::ifstream lines(path_);
  lines.seekg(read_bytes_);
  for (std::string line; std::getline(lines, line) && !lines.eof();) {  // the last line may not be whole yet
    read_bytes_ += static_cast<int64_t>(line.size()) + 1;
    take(line);
  }
}

void RunMetrics::take(const std::string& line) {
  nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
  if (!record.is_object()) return;
  const auto kind = record.find("event");
  if (kind == record.end() || !kind->is_string()) return;
  if (*kind == "step") {
    take_step(record);
  } else {
    events_.push_back(std::move(record));
  }
}

void RunMetrics::take_step(const nlohmann::json& record) {
  const auto number = [&record](const std::string& key, double otherwise) {
    const auto found = record.find(key);
    return found != record.end() && found->is_number() ? found->get<double>() : otherwise;
  };
  for (auto& [name, values] : values_) values.push_back(number(name, std::numeric_limits<double>::quiet_NaN()));
  const RunStep before = steps_.empty() ? RunStep() : steps_.back();
  const RunStep step{.step = std::max(int64_t{0}, static_cast<int64_t>(number("step", 0.0))),
                     .tokens_so_far = before.tokens_so_far + number("tokens", 0.0),
                     .hours_so_far = before.hours_so_far + number("ms", 0.0) / 3.6e6};
  steps_.push_back(step);
  if (const auto applied = record.find("applied"); applied == record.end() || *applied != false) return;
  const auto reason = record.find("skip_reason");
  const std::string text = reason != record.end() && reason->is_string() ? reason->get<std::string>() : "not told";
  events_.push_back({{"event", "skip"}, {"step", step.step}, {"reason", text}});
}

std::vector<const nlohmann::json*> RunMetrics::events(const std::string& kind) const {
  std::vector<const nlohmann::json*> found;
  for (const nlohmann::json& event : events_) {
    if (event.at("event") == kind) found.push_back(&event);
  }
  return found;
}

}  // namespace mantissa
