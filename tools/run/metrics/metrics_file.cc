#include "tools/run/metrics/metrics_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/config/config_binding.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/metrics/metric_table.h"

namespace mantissa {
namespace {

// Removes the records after `last_step`, and a line that a crash cut off. The first weights are evaluated anew.
void keep_records(const std::string& path, int64_t last_step) {
  std::ifstream old(path);
  std::string kept;
  for (std::string line; std::getline(old, line);) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object() || record.value("step", int64_t{0}) > last_step) continue;
    const std::string event = record.value("event", "");
    if (last_step > 0 || (event != "validation" && event != "evaluation")) kept += line + '\n';
  }
  replace_file(path, kept);
}

std::string prepared(const std::string& path, std::optional<int64_t> steps) {
  std::error_code ignored;  // a failure to write shows later
  if (!steps) {
    std::filesystem::remove(path + ".previous", ignored);  // else two names of one file would stay
    std::filesystem::rename(path, path + ".previous", ignored);
  } else if (file_exists(path)) {
    keep_records(path, *steps);
  }
  return path;
}

// ---- TensorBoard

// TensorBoard takes every file with "tfevents" in its name for a file of events.
constexpr std::string_view kEvents = "tfevents", kPrevious = "previous";

// Keeps the files of another run under names without "tfevents", and removes files kept of an earlier run.
void set_events_aside(const std::string& run_dir) {
  std::vector<std::filesystem::path> files, kept;
  std::error_code ignored;  // a folder that cannot be read has no files to move
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(fmt::format("events.out.{}.", kEvents))) files.push_back(entry.path());
    if (name.starts_with(fmt::format("events.out.{}.", kPrevious))) kept.push_back(entry.path());
  }
  if (files.empty()) return;
  for (const auto& file : kept) std::filesystem::remove(file, ignored);
  for (const auto& file : files) {
    std::string name = file.filename();
    name.replace(name.find(kEvents), kEvents.size(), kPrevious);
    std::filesystem::rename(file, file.parent_path() / name, ignored);
  }
}

// Readers take the files of a folder in the order of their names.
std::string new_events_path(const std::string& run_dir, double time) {
  std::string path;
  for (int number = 0; path.empty() || file_exists(path); ++number) {
    path = fmt::format("{}/events.out.{}.{:010.0f}.{:03}.{}.{}", run_dir, kEvents, std::floor(time), number,
                       host_name(), getpid());
  }
  return path;
}

// Figures of train.evaluations. The tag is evaluation/NAME/FIELD.
constexpr const char* kScores[] = {"acc", "acc_norm", "loss", "bits_per_byte"};

// Indented, so that Markdown leaves it as it is.
std::string as_code(const std::string& text) {
  std::string code = "    ";
  for (const char c : text) {
    code += c;
    if (c == '\n') code += "    ";
  }
  return code;
}

}  // namespace

AppendedFile::AppendedFile(std::string what, std::string path)
    : what_(std::move(what)),
      path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666)) {}

AppendedFile::~AppendedFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AppendedFile::append(std::string_view bytes) {
  struct stat before {};
  const bool is_open = descriptor_ >= 0 && ::fstat(descriptor_, &before) == 0;
  const ssize_t written = is_open ? ::write(descriptor_, bytes.data(), bytes.size()) : -1;
  const bool is_whole = written == static_cast<ssize_t>(bytes.size());
  const bool is_truncated = before.st_size < std::exchange(bytes_, before.st_size + (is_whole ? written : 0));
  if (is_whole && before.st_nlink > 0) {
    if (is_truncated) log_warn("{} so far are lost: somebody truncated {}", what_, path_);
    return;
  }
  // Part of a record would make the next one unreadable.
  if (!is_whole && written > 0 && ::ftruncate(descriptor_, before.st_size) != 0)
    ::close(std::exchange(descriptor_, -1));
  if (std::exchange(has_warned_, true)) return;
  log_warn("{} cannot be written to {}{}: training goes on without them", what_, path_,
           is_whole ? ", which somebody removed" : "");
}

TensorboardFile::TensorboardFile(const std::string& run_dir, std::optional<int64_t> steps,
                                 const std::map<std::string, std::string>& settings) {
  if (!steps) set_events_aside(run_dir);
  const double now = unix_time();
  file_.emplace("TensorBoard's events", new_events_path(run_dir, now));
  file_->append(TensorboardEvent::file_version(now));
  // The first weights are evaluated anew.
  if (steps) file_->append(TensorboardEvent::restart(now, *steps > 0 ? *steps + 1 : 0));
  std::map<std::string, std::string> readable;
  for (const auto& [name, value] : settings) readable[name] = legible(value);
  file_->append(
      TensorboardEvent(now, 0).session_start(readable, {metric("loss").tag, metric("validation_loss").tag}).record());
}

void TensorboardFile::write(const nlohmann::json& record) {
  const auto kind = record.at("event").get<std::string>();
  TensorboardEvent event(unix_time(), record.value("step", int64_t{0}));
  for (const Metric& row : metrics()) {
    if (row.tag == nullptr || kind != row.event) continue;
    const auto figure = record.find(row.field != nullptr ? row.field : row.name);
    if (figure != record.end() && figure->is_number()) event.scalar(row.tag, *figure);
  }
  if (kind == "step") {
    event.scalar(metric("skipped_steps").tag, record.at("applied") ? 0.0 : 1.0);
  } else if (kind == "evaluation") {
    for (const char* const field : kScores) {
      const auto figure = record.find(field);
      if (figure == record.end() || !figure->is_number()) continue;
      event.scalar(fmt::format("evaluation/{}/{}", record.at("name").get<std::string>(), field), *figure);
    }
  } else if (kind == "sample") {
    event.text("samples", as_code(record.at("text")));
  } else if (kind == "precision" || kind == "rollback" || kind == "stop") {
    event.text("events", kind + ": " + record.at("cause").get<std::string>());
  }
  if (!event.is_empty()) file_->append(event.record());
}

void TensorboardFile::write(const ProbedStep& step) {
  TensorboardEvent event(unix_time(), step.step + 1);
  for (const ProbeRow& row : step.rows) {
    const auto [least, counts] = by_exponent(row.histogram);
    if (!counts.empty()) event.histogram(fmt::format("log2 of {}/{}", row.role, row.tensor), least, counts);
  }
  if (!event.is_empty()) file_->append(event.record());
}

void TensorboardFile::write(Ending ending) {
  const auto end = ending == Ending::kDone      ? TensorboardEvent::SessionEnd::kSuccess
                   : ending == Ending::kStopped ? TensorboardEvent::SessionEnd::kUnknown
                                                : TensorboardEvent::SessionEnd::kFailure;
  file_->append(TensorboardEvent(unix_time(), 0).session_end(end).record());
}

RunRecords::RunRecords(const Config& config, std::optional<int64_t> steps)
    : metrics_("metrics", prepared(config.train.run_dir + "/metrics.jsonl", steps)) {
  if (config.train.tensorboard) tensorboard_.emplace(config.train.run_dir, steps, flatten(config));
}

void RunRecords::write(const nlohmann::json& record) {
  metrics_.append(record.dump() + '\n');
  if (tensorboard_) tensorboard_->write(record);
}

// ---- Reading

RunMetrics::RunMetrics(const std::string& run_dir) : path_(run_dir + "/metrics.jsonl") {
  for (const Metric& row : metrics()) {
    if (row.of_step != nullptr) values_[row.name];
  }
}

const std::vector<double>& RunMetrics::values(std::string_view metric) const {
  return values_.at(mantissa::metric(metric).name);
}

void RunMetrics::refresh() {
  require_readable(path_);
  struct stat file {};
  const bool exists = ::stat(path_.c_str(), &file) == 0;
  // A resumed run replaces the file by a file without the steps after its checkpoint.
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
