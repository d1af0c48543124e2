#include "tools/run/metrics/run_metrics.h"

#include <sys/stat.h>

#include <fstream>

namespace mantissa {

RunMetrics::RunMetrics(const std::string& run_dir) : path_(run_dir + "/metrics.jsonl") {}

void RunMetrics::refresh() {
  struct stat file {};
  const bool exists = ::stat(path_.c_str(), &file) == 0;
  // A resumed run replaces the file by one without the steps behind its checkpoint.
  if (!exists || file.st_dev != device_ || file.st_ino != inode_ || file.st_size < read_bytes_) {
    read_bytes_ = 0;
    steps_.clear();
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
  if (*kind != "step") {
    events_.push_back(std::move(record));
    return;
  }
  const auto number = [&record](const char* key) {
    const auto found = record.find(key);
    return found != record.end() && found->is_number() ? found->get<double>() : RunStep::kUnknown;
  };
  RunStep step{.loss = number("loss"),
               .grad_norm = number("grad_norm"),
               .learning_rate = number("lr"),
               .scale = number("scale"),
               .seconds = 1e-3 * number("ms"),
               .tokens_per_second = number("tokens_per_second"),
               .mfu = number("mfu_of_gemm_peak")};
  if (std::isnan(step.mfu)) step.mfu = number("mfu_of_datasheet");
  if (const double at = number("step"); at > 0.0) step.step = static_cast<int64_t>(at);
  const auto applied = record.find("applied");
  step.applied = applied == record.end() || *applied != false;
  const auto known = [](double value) { return std::isnan(value) ? 0.0 : value; };
  step.tokens_so_far = known(number("tokens")) + (steps_.empty() ? 0.0 : steps_.back().tokens_so_far);
  step.hours_so_far = known(step.seconds) / 3600.0 + (steps_.empty() ? 0.0 : steps_.back().hours_so_far);
  if (!step.applied) {
    const auto reason = record.find("skip_reason");
    const std::string text = reason != record.end() && reason->is_string() ? reason->get<std::string>() : "not told";
    events_.push_back({{"event", "skip"}, {"step", step.step}, {"reason", text}});
  }
  steps_.push_back(step);
}

std::vector<const nlohmann::json*> RunMetrics::events(const std::string& kind) const {
  std::vector<const nlohmann::json*> found;
  for (const nlohmann::json& event : events_) {
    if (event.at("event") == kind) found.push_back(&event);
  }
  return found;
}

}  // namespace mantissa
