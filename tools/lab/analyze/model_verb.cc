#include "tools/lab/analyze/model_verb.h"

#include <nlohmann/json.hpp>

#include <cstdio>

#include "core/base/error.h"
#include "tools/lab/analyze/model_report.h"
#include "tools/lab/analyze/page/model_page.h"
#include "tools/config/validation.h"
#include "tools/lab/report/output_file.h"
#include "tools/train/job.h"
#include "tools/train/launch.h"
#include "tools/train/memory_table.h"

namespace mantissa {
namespace {

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
  if (json.is_wanted()) json.write(data);
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

Config valid_configuration_of(const ModelRequest& request, const ModelOutputs& outputs) {
  validate(request.loss_scale);
  Config config = configuration_of(request);
  require_different_files({{"--json", outputs.json}, {"--html", outputs.html}}, files_read(request.target, config));
  return config;
}

}  // namespace

int model_verb(const ModelRequest& request, const ModelOutputs& outputs) {
  return run_job(
      [&] { return valid_configuration_of(request, outputs); },
      [&](const Config& config, Communicator& communicator) { analyze(request, outputs, config, communicator); });
}

}  // namespace mantissa
