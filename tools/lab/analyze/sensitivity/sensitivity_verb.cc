#include "tools/lab/analyze/sensitivity/sensitivity_verb.h"

#include <cstdio>

#include "core/base/error.h"
#include "tools/lab/analyze/model_analysis.h"
#include "tools/lab/analyze/sensitivity/sensitivity_report.h"
#include "tools/config/validation.h"
#include "tools/lab/report/output_file.h"
#include "tools/train/checkpoint.h"
#include "tools/train/job.h"
#include "tools/train/launch.h"

namespace mantissa {
namespace {

void validate(const SensitivityRequest& request) {
  if (!(request.low_risk >= 0.0 && request.high_risk >= request.low_risk)) {
    throw ConfigError(
        fmt::format("--risk-low, --risk-high: expected shares, the second at least the first, got {} and "
                    "{}",
                    request.low_risk, request.high_risk));
  }
}

// Leaves nothing behind but `json`.
Config analysed(const SensitivityRequest& request, const std::string& json) {
  validate(request);
  const ModelRequest model{.target = request.target, .overrides = request.overrides};
  Config config = in_exact_precision(configuration_of(model));
  require_different_files({{"--json", json}}, files_read(request.target, config));
  config.checkpoint.resume = std::filesystem::is_directory(request.target) ? request.target : "none";
  config.checkpoint.allow_changes = true;
  config.train.run_dir += "/analysis";  // which is neither read nor made
  config.train.sample_tokens = 0;
  config.probe = {};
  config.test = {};
  config.profile = false;
  config.cuda.graph = false;
  return config;
}

void analyze(const SensitivityRequest& request, const std::string& path, const Config& config,
             Communicator& communicator) {
  const bool leads = communicator.rank() == 0;
  OutputFile json("--json", leads ? path : "");
  validate_for_ranks(config, communicator.size());
  set_up_threads(config, communicator);
  Session session(config, communicator);
  TrainingCheckpoints checkpoints(session, config);
  if (const auto point = find_resume_point(config, communicator)) checkpoints.resume(*point);
  const SensitivityAnalysis analysis = analyze_sensitivity(request, session);
  if (!leads) return;
  const std::string text = to_text(analysis);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (json.is_wanted()) json.write(to_json(analysis));
}

}  // namespace

int sensitivity_verb(const SensitivityRequest& request, const std::string& json) {
  return run_job(
      [&] { return analysed(request, json); },
      [&](const Config& config, Communicator& communicator) { analyze(request, json, config, communicator); });
}

}  // namespace mantissa
