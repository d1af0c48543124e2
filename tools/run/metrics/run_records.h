// RunRecords: what rank 0 writes about a run for programs: metrics.jsonl, and the same figures for TensorBoard.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "tools/config/config.h"
#include "tools/probe/probe_log.h"
#include "tools/run/guard/stop_request.h"

namespace mantissa {

// A file to whose end a run writes. If it cannot be written, that is told once and does not stop the run. No link is
// followed.
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
  bool has_warned_ = false;
};

// JSON lines.
class MetricsFile {
 public:
  // Continues the file of a run that has done `steps`, also 0 after a rollback: records of later steps are removed.
  // Nothing: a run begins, and the file of another one is kept as PATH.previous.
  MetricsFile(const std::string& path, std::optional<int64_t> steps);
  void write(const nlohmann::json& record);

 private:
  AppendedFile file_;
};

// An event file of TensorBoard in the run folder, where `tensorboard --logdir` finds the run by its folder's name.
class TensorboardFile {
 public:
  // Each session has a file of its own. If it continues a run that has done `steps`, readers drop what the files before
  // say of later steps. Nothing: a run begins, and the files of another one get names that TensorBoard passes over.
  // `settings`: all that the run has.
  TensorboardFile(const std::string& run_dir, std::optional<int64_t> steps,
                  const std::map<std::string, std::string>& settings);
  // A record of metrics.jsonl; those without a figure that TensorBoard can show are passed over.
  void write(const nlohmann::json& record);
  // Histograms of the tensors' magnitudes, by powers of two.
  void write(const ProbedStep& step);
  void write(Ending ending);

 private:
  std::optional<AppendedFile> file_;
};

class RunRecords {
 public:
  // `steps`: as for the files. References need not outlive the object.
  RunRecords(const Config& config, std::optional<int64_t> steps);
  void write(const nlohmann::json& record);
  void write(const ProbedStep& step);
  void write(Ending ending);

 private:
  MetricsFile metrics_;
  std::optional<TensorboardFile> tensorboard_;
};

}  // namespace mantissa
