#include "tools/analyze/model_verb.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/analyze/model_report.h"
#include "tools/analyze/page/model_page.h"
#include "tools/config/validation.h"
#include "tools/train/job.h"
#include "tools/train/launch.h"
#include "tools/train/memory_table.h"

namespace mantissa {
namespace {

// A file that is begun before anything is computed, so that a path which cannot be written is found out at once, and
// that takes the place of an older one when it is complete. What is there and is no file (/dev/stdout, a pipe) is
// written to as it is: another in its place would be no longer the same thing.
class OutputFile {
 public:
  OutputFile(const char* option, const std::string& path) : option_(option), path_(path), begun_as_(path) {
    if (path.empty()) return;
    std::error_code ignored;
    const auto status = std::filesystem::status(path, ignored);
    if (std::filesystem::is_directory(status)) {
      throw ConfigError(
          fmt::format("{}: {}: expected a file that can be written, got a folder: name a file in it", option, path));
    }
    if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) begun_as_ += ".partial";
    file_.open(begun_as_);
    if (!file_) throw ConfigError(fmt::format("{}: {}: expected a file that can be written", option, path));
  }
  ~OutputFile() {
    if (std::error_code ignored; replaces()) std::filesystem::remove(begun_as_, ignored);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool is_wanted() const { return !path_.empty(); }
  void write(const std::string& text) {
    file_ << text;
    file_.close();
    std::error_code failed;
    if (file_ && replaces()) std::filesystem::rename(begun_as_, path_, failed);
    if (!file_ || failed) throw ConfigError(fmt::format("{}: {}: could not be written to its end", option_, path_));
    log_info("written: {}", path_);
  }

 private:
  bool replaces() const { return begun_as_ != path_; }

  const char* option_;
  const std::string path_;
  std::string begun_as_;
  std::ofstream file_;
};

void analyze(const ModelRequest& request, const ModelOutputs& outputs, const Config& config,
             Communicator& communicator) {
  const bool leads = communicator.rank() == 0;
  OutputFile html("--html", leads ? outputs.html : ""), json("--json", leads ? outputs.json : "");
  validate_for_ranks(config, communicator.size());
  set_up_threads(config, communicator);
  predict_memory_tables(config, communicator.size(), expected_path(config, communicator));  // what the model refuses
  const ModelAnalysis analysis = analyze_model(request, config, communicator);
  if (!leads) return;
  const std::string text = to_text(analysis);
  std::fwrite(text.data(), 1, text.size(), stdout);
  const nlohmann::json data = to_json(analysis);
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;  // paths need not be UTF-8
  if (json.is_wanted()) json.write(data.dump(1, ' ', false, kReplace) + "\n");
  if (html.is_wanted()) html.write(model_page(data));
}

// NaN is neither.
void validate(const StaticScaleOptions& options) {
  if (!(options.percentile > 0.0 && options.percentile <= 100.0)) {
    throw ConfigError(fmt::format("--percentile: expected a number above 0, at most 100, got {}", options.percentile));
  }
  // Beyond, no scale in fp32 leaves what is asked for.
  constexpr double kLargestHeadroom = 0x1p64;
  if (!(options.headroom >= 1.0 / kLargestHeadroom && options.headroom <= kLargestHeadroom)) {
    throw ConfigError(
        fmt::format("--headroom: expected a number from 2^-64 to 2^64, which is from {:.3g} to {:.3g}, got {}",
                    1.0 / kLargestHeadroom, kLargestHeadroom, options.headroom));
  }
}

// Two reports cannot be one file, whatever ways lead to it; what is there and is no file takes both in turn.
void validate(const ModelOutputs& outputs) {
  if (outputs.html.empty() || outputs.json.empty()) return;
  std::error_code ignored;
  if (std::filesystem::is_other(outputs.json, ignored)) return;
  const auto real = [](const std::string& path) {
    std::error_code failed;
    const auto whole = std::filesystem::weakly_canonical(std::filesystem::absolute(path, failed), failed);
    return failed ? std::filesystem::path(path) : whole;
  };
  if (real(outputs.json) != real(outputs.html)) return;
  throw ConfigError(fmt::format("--json {} and --html {}: expected two files, got one: name another for one of them",
                                outputs.json, outputs.html));
}

Config valid_configuration_of(const ModelRequest& request, const ModelOutputs& outputs) {
  validate(request.loss_scale);
  validate(outputs);
  return configuration_of(request);
}

}  // namespace

int model_verb(const ModelRequest& request, const ModelOutputs& outputs) {
  return run_job(
      [&] { return valid_configuration_of(request, outputs); },
      [&](const Config& config, Communicator& communicator) { analyze(request, outputs, config, communicator); });
}

}  // namespace mantissa
