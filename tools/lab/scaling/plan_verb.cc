// The verb `mantissa plan`.
#include <cmath>
#include <memory>

#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/config/precision_phases.h"
#include "tools/lab/scaling/plan.h"
#include "tools/lab/verbs.h"
#include "tools/run/job/job.h"
#include "tools/run/metrics/metrics_file.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa {
namespace scaling {
namespace {

// Steps at a start that allocate memory and choose kernels.
constexpr int64_t kWarmUpSteps = 10;

struct PlanVerbRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::string hardware = "h100", network, json;
  std::vector<int> gpus = {1, 8, 64, 512, 1024};
  int64_t sequences = 0;
  std::vector<std::string> score;  // run folders
  bool published = false;
};

PlanOptions options_of(const PlanVerbRequest& request) {
  PlanOptions options{.hardware = request.hardware, .sequences = request.sequences};
  if (!request.network.empty()) options.network = read_network(request.network);
  return options;
}

// A configuration for devices and transports that need not be here.
Config planned_config(const std::string& path, const std::vector<std::string>& overrides) {
  Config config = at_step(load_config(path, overrides), 0);
  config.precision_adaptive = {};
  config.device = "auto";
  config.comm.backend = "auto";
  return config;
}

// Predicted and measured milliseconds of a step of a run. ConfigError for a folder without enough steps.
Json score_of(const std::string& run, const PlanVerbRequest& request) {
  RunMetrics metrics(run);
  metrics.refresh();
  const std::vector<const Json*> starts = metrics.events("start");
  require<ConfigError>(!starts.empty() && std::ssize(metrics.steps()) > kWarmUpSteps,
                       "{}: expected a run folder whose metrics.jsonl has a start and more than {} steps, got {}", run,
                       kWarmUpSteps, counted(std::ssize(metrics.steps()), "step"));
  const std::vector<double>& all = metrics.values("ms");
  const int64_t first = starts.back()->value("next_step", int64_t{1});
  std::vector<double> measured;
  for (size_t index = 0; index < all.size(); ++index) {
    if (metrics.steps()[index].step >= first + kWarmUpSteps && std::isfinite(all[index])) {
      measured.push_back(all[index]);
    }
  }
  require<ConfigError>(!measured.empty(), "{}: expected more than {} steps since the last start, at step {}", run,
                       kWarmUpSteps, first);
  const int ranks = starts.back()->value("ranks", 1);
  const Config config = planned_config(configuration_file(run), {});
  const double predicted_ms = 1e3 * predicted_step_seconds(config, options_of(request), ranks);
  const double measured_ms = quantile(measured, 0.5);
  return {{"run", run},
          {"ranks", ranks},
          {"steps", measured.size()},
          {"predicted_ms", predicted_ms},
          {"measured_ms", measured_ms},
          {"error", predicted_ms / measured_ms - 1.0}};
}

Json score(const PlanVerbRequest& request) {
  Json runs = Json::array();
  std::vector<double> errors;
  for (const std::string& run : request.score) {
    runs.push_back(score_of(run, request));
    errors.push_back(std::abs(runs.back()["error"].get<double>()));
  }
  const Json figures{{"hardware", request.hardware},
                     {"median_error", quantile(errors, 0.5)},
                     {"worst_error", quantile(errors, 1.0)},
                     {"runs", runs}};
  ReportText text;
  text.line("Predicted steps on {} are off by {:.1f} % in the median, {:.1f} % at worst, over {}", request.hardware,
            100.0 * number_of(figures["median_error"]), 100.0 * number_of(figures["worst_error"]),
            counted(std::ssize(runs), "run"));
  text.blank_line().table(runs, {{"run", "run"},
                                 {"ranks", "ranks"},
                                 {"steps", "steps"},
                                 {"predicted\nms", "predicted_ms", in_format("{:.1f}")},
                                 {"measured\nms", "measured_ms", in_format("{:.1f}")},
                                 {"error\n%", "error", in_format("{:+.1f}", 100.0)}});
  print(text.text());
  return figures;
}

void run_plan(const PlanVerbRequest& request) {
  require<ConfigError>(launcher_size() <= 1,
                       "plan: expected to be started alone, got a job of several processes: --gpus says how many");
  require<ConfigError>(
      (request.config.empty() ? 0 : 1) + (request.score.empty() ? 0 : 1) + (request.published ? 1 : 0) == 1,
      "plan: expected a configuration, or --score with run folders, or --published");
  OutputFile json("--json", request.json);
  if (request.published) {
    const Json figures = compare_published();
    print(to_markdown(figures));
    json.write(figures);
  } else if (!request.score.empty()) {
    json.write(score(request));
  } else {
    const Config config = planned_config(request.config, request.overrides);
    require_known_names(config);
    const Json figures = plan_figures(request.config, config, options_of(request), request.gpus);
    print(to_text(figures).text());
    json.write(figures);
  }
}

}  // namespace
}  // namespace scaling

void add_plan(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* plan_command =
      app.add_subcommand("plan", "Predict the speed of a training on many GPUs, and what bounds it");
  const auto request = std::make_shared<scaling::PlanVerbRequest>();
  VerbOptions options(*plan_command);
  plan_command->add_option("config", request->config, "YAML file");
  plan_command->add_option("overrides", request->overrides, "settings that replace the file's: comm.bucket_mib=64");
  options.add("--hardware", request->hardware, "GPU with a measured rate of products: h100, h200, b200, a100");
  options.list("--gpus", request->gpus, "numbers of GPUs: one node at most, or whole nodes")
      ->check(CLI::Range(1, 1 << 20));
  options.count("--sequences", request->sequences, 0, int64_t{1} << 30,
                "sequences of a GPU in a step, so that the global batch grows with the GPUs; 0: train.global_batch");
  options.add("--network", request->network, "YAML file of link parameters; default: NVLink 4 and 400 Gbit/s a GPU");
  options.list("--score", request->score, "compare predicted with measured steps of these run folders");
  plan_command->add_flag("--published", request->published,
                         "compare the simulation with published tables, as a page of Markdown");
  options.json(request->json);
  verbs.push_back({plan_command, "plan configs/gpt2_xl_bf16.yaml --hardware h100 --gpus 8,64,1024 --sequences 16",
                   [request] { return run_reported([&] { scaling::run_plan(*request); }); }});
}

}  // namespace mantissa
