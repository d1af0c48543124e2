// Records of a run that rank 0 writes for programs: metrics.jsonl, read by RunMetrics, and the same for TensorBoard.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/config/config.h"
#include "tools/probe/probe_log.h"
#include "tools/run/guard/stop_request.h"

namespace mantissa {

// A file to whose end a run writes. A failure is told once and does not stop the run. No link is followed.
class AppendedFile {
 public:
  // `what` is in it, for the message: "metrics".
  AppendedFile(std::string what, std::string path);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  // All of it, or nothing. It outlives the process at once.
  void append(std::string_view bytes);

 private:
  const std::string what_, path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;  // of the file, as far as this object knows
  bool has_warned_ = false;
};

// ---- Records of a TensorBoard event file: the figures of a step as bytes.
//
// A file is a row of records. A record is the length of its data (8 bytes), the masked CRC-32C of the length, the data,
// and their masked CRC-32C. The data are a message `Event` in the encoding of Protocol Buffers.

// CRC-32C (Castagnoli), as of iSCSI.
uint32_t crc32c(std::string_view bytes);

// The figures of one step. Tags and texts must be UTF-8.
class TensorboardEvent {
 public:
  enum class SessionEnd : uint8_t { kUnknown = 0, kSuccess = 1, kFailure = 2 };

  // `time`: seconds of Unix time.
  TensorboardEvent(double time, int64_t step) : time_(time), step_(step) {}

  // The first record of a file.
  static std::string file_version(double time);
  // Readers then drop what earlier files of the folder say of this step and of later ones.
  static std::string restart(double time, int64_t step);

  TensorboardEvent& scalar(std::string_view tag, double value);
  // TensorBoard shows it as Markdown.
  TensorboardEvent& text(std::string_view tag, std::string_view markdown);
  // counts[i] values lie in [least + i, least + i + 1).
  TensorboardEvent& histogram(std::string_view tag, int64_t least, std::span<const int64_t> counts);
  // For the tab of hyperparameters: the settings of a run by name, and the tags of the scalars by which runs are
  // compared. Settings that read as numbers or truth values are such.
  TensorboardEvent& session_start(const std::map<std::string, std::string>& settings,
                                  const std::vector<std::string>& metrics);
  TensorboardEvent& session_end(SessionEnd end);

  bool is_empty() const { return values_.empty(); }
  std::string record() const;

 private:
  TensorboardEvent& hparams(std::string_view tag, std::string_view content);

  double time_;
  int64_t step_;
  std::string values_;  // encoded
};

// An event file of TensorBoard in the run folder, where `tensorboard --logdir` finds the run by its folder's name.
class TensorboardFile {
 public:
  // Each session has a file of its own. If it continues a run after `steps`, readers drop later steps from the files
  // before. Nothing: a run begins, and older files get names that TensorBoard passes over. `settings`: all.
  TensorboardFile(const std::string& run_dir, std::optional<int64_t> steps,
                  const std::map<std::string, std::string>& settings);
  // A record of metrics.jsonl; skips records without a figure for TensorBoard.
  void write(const nlohmann::json& record);
  // Histograms of the tensors' magnitudes, by powers of two.
  void write(const ProbedStep& step);
  void write(Ending ending);

 private:
  std::optional<AppendedFile> file_;
};

// metrics.jsonl and, with train.tensorboard, a TensorboardFile.
class RunRecords {
 public:
  // Continues metrics.jsonl of a run that has done `steps`, also 0 after a rollback: records of later steps are
  // removed. Nothing: a run begins, and the file of another one is kept as metrics.jsonl.previous.
  RunRecords(const Config& config, std::optional<int64_t> steps);
  void write(const nlohmann::json& record);
  void write(const ProbedStep& step) {
    if (tensorboard_) tensorboard_->write(step);
  }
  void write(Ending ending) {
    if (tensorboard_) tensorboard_->write(ending);
  }

 private:
  AppendedFile metrics_;  // JSON lines
  std::optional<TensorboardFile> tensorboard_;
};

struct RunStep {
  int64_t step = 0;  // from 1
  // From the first step of the file to this one.
  double tokens_so_far = 0.0, hours_so_far = 0.0;
};

// Content of metrics.jsonl, read on as it grows.
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
  // Records of this kind: "validation", or "skip" for skipped steps, with `step` and `reason`.
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
