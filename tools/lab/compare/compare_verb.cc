#include "tools/lab/compare/compare_verb.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/lab/analyze/formats_verb.h"
#include "tools/lab/compare/comparison_report.h"
#include "tools/lab/compare/gradient_underflow.h"
#include "tools/lab/compare/page/comparison_page.h"
#include "tools/lab/report/output_file.h"
#include "tools/train/job.h"
#include "tools/train/launch.h"

namespace mantissa {
namespace {

constexpr int64_t kProbedSteps = 8;          // whose gradients are looked at
constexpr int64_t kFormatSamples = 1 << 14;  // values tried for each size: the charts show no third digit

Config configuration_of(const CompareRequest& request) {
  if (request.margin && !(*request.margin >= 0.0 && std::isfinite(*request.margin))) {
    throw ConfigError(fmt::format("--margin: expected a number of nats, 0 or more, got {}", *request.margin));
  }
  std::vector<std::string> overrides = request.overrides;
  if (request.steps > 0) overrides.push_back(fmt::format("train.steps={}", request.steps));
  Config config = load_config(request.config, overrides);
  if (request.steps > 0) config.train.stop_at_step = 0;
  std::vector<NamedFile> read = files_read(request.config, config);
  for (const std::string& precision : request.precisions) {  // NAME=FILE
    if (const size_t equals = precision.find('='); equals != std::string::npos)
      read.push_back({"--precisions", precision.substr(equals + 1)});
  }
  require_different_files({{"--json", request.json}, {"--html", request.html}}, read);
  return config;
}

// Nothing where the device has no memory for steps in fp32, though it has it for those that were compared. Of several
// ranks some may have it, and would wait for the others.
std::optional<GradientUnderflow> find_underflow(const CompareRequest& request, const Config& config,
                                                Communicator& communicator) {
  try {
    return measure_gradient_underflow(request.config, config, kProbedSteps, communicator);
  } catch (const Error& error) {
    if (communicator.size() > 1 || error.code() != ExitCode::kConfig) throw;
    log_warn("what formats lose of the gradients is left out: {}", error.what());
    return std::nullopt;
  }
}

void compare(const CompareRequest& request, const Config& config, Communicator& communicator) {
  const bool leads = communicator.rank() == 0;
  OutputFile html("--html", leads ? request.html : ""), json("--json", leads ? request.json : "");
  set_up_threads(config, communicator);
  const PrecisionComparison comparison = compare_precisions(
      {.title = request.config, .seeds = request.seeds, .baseline = request.baseline, .margin = request.margin}, config,
      chosen_candidates(config, request.precisions, "--precisions"), communicator);
  if (leads) {
    const std::string text = to_text(comparison);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  if (request.html.empty() && request.json.empty()) return;
  const auto underflow = find_underflow(request, config, communicator);
  if (!leads) return;
  nlohmann::json data = to_json(comparison);
  if (underflow) data["gradients"] = to_json(*underflow);
  data["device_formats"] = 
      analyze_formats({.device = config.device, .samples = kFormatSamples, .products = request.products, .json = {}});
  if (json.is_wanted()) json.write(data);
  if (html.is_wanted()) html.write(comparison_page(data));
}

}  // namespace

int compare_verb(const CompareRequest& request) {
  return run_job([&] { return configuration_of(request); },
                 [&](const Config& config, Communicator& communicator) { compare(request, config, communicator); });
}

}  // namespace mantissa
