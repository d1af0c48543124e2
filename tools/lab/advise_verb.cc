#include "tools/lab/verbs.h"

#include <fmt/ranges.h>

#include <memory>
#include <sstream>

#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/config/config.h"
#include "tools/config/precision_phases.h"
#include "tools/lab/advise/advice.h"
#include "tools/lab/advise/plan/plan_advice.h"
#include "tools/lab/advise/recommendation.h"
#include "tools/run/job/job.h"
#include "tools/run/report/report.h"

namespace mantissa {
namespace {

// Beside those of ExitCode: there is a plan, and its files are written, but it misses the budget.
constexpr int kBudgetMissed = 9;

struct AdviseRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::string hardware;  // empty: the present device
  std::vector<std::string> formats;
  std::string html, json;  // files; empty: none

  // The comparison whose damage counts, and the configuration to write; empty: none.
  std::string measured, output;

  // Only with a budget, but for run.ranks and run.rounds. Recipes and state may be {"none"} for an empty list; plan()
  // fills in run.plan.budget, run.hardware and run.state.
  std::string budget;
  std::vector<std::string> state;  // empty: that of PlanRunRequest
  std::string damage = "loss", plan = "precision_plan.yaml";
  PlanRunRequest run{.validation = {.most_seeds = 6}};
};

// 0, or a number in [least, most]: for the help and the parser alike.
CLI::Validator zero_or(int64_t least, int64_t most) {
  const std::string range = fmt::format("0 or {} to {}", least, most);
  return {[least, most, range](const std::string& text) {
            int64_t value = -1;
            const bool is_number = CLI::detail::lexical_cast(text, value);
            const bool fits = is_number && (value == 0 || (value >= least && value <= most));
            return fits ? std::string() : fmt::format("expected {}, got {}", range, text);
          },
          range};
}

// Returns whether the plan keeps to the budget.
bool plan(const AdviseRequest& request, const Config& config) {
  PlanRunRequest run = request.run;
  if (!request.state.empty()) run.state = request.state;
  for (std::vector<std::string>* const given : {&run.plan.recipes, &run.state}) {
    if (*given == std::vector<std::string>{"none"}) given->clear();
  }
  run.plan.budget = parse_budget(request.budget);
  run.plan.damage = parse_damage_score(request.damage);
  require<ConfigError>(
      run.plan.damage == DamageScore::kLoss || request.state.empty() || run.state.empty(),
      "--state {}: --damage {} is a score of layers and knows nothing of optimizer state and the wire, "
      "which stay as configured: leave out one of the two",
      fmt::join(run.state, ","), request.damage);
  run.hardware = request.hardware.empty() ? nullptr : &find_hardware(request.hardware);
  require_different_files({{"--plan", request.plan}, {"--json", request.json}, {"--html", request.html}},
                          files_read(request.config, config));
  OutputFile html("--html", request.html), json("--json", request.json), yaml("--plan", request.plan);
  const PlanAdvice found = find_plan(run, request.config, config);
  print(to_text(found).text());
  if (yaml.is_wanted()) yaml.write(to_plan_yaml(found, request.config));
  Json figures = to_json(found);
  figures["model"] = request.config;
  json.write(figures);
  html.write(page_document(kAdvicePage, figures));
  return !found.misses_budget();
}

void recommend(const AdviseRequest& request, const Config& config) {
  std::vector<NamedFile> read = files_read(request.config, config);
  read.push_back({"--measured", request.measured});
  require_different_files({{"--output", request.output}, {"--json", request.json}}, read);
  std::vector<const Hardware*> hardware;
  std::istringstream names(request.hardware);
  for (std::string name; std::getline(names, name, ',');) hardware.push_back(&find_hardware(name));
  require<ConfigError>(request.output.empty() || hardware.size() <= 1,
                       "--output: a configuration is for one device: give one --hardware, got {}", request.hardware);
  OutputFile json("--json", request.json), yaml("--output", request.output);
  Measurement measurement = read_measurement(request.measured, config);
  const std::vector<Candidate> candidates = candidates_of(config, measurement);
  std::vector<Advice> devices;
  for (const Hardware* const one : hardware) {
    devices.push_back(advise(request.config, config, candidates, request.run.ranks, *one));
  }
  if (hardware.empty()) {
    devices.push_back(advise_present_device(request.config, config, candidates, request.run.rounds).advice);
  }
  const RecommendationReport report =
      report_recommendations(request.config, config, std::move(measurement), std::move(devices));
  print(to_text(report).text());
  if (json.is_wanted()) json.write(to_json(report));
  if (yaml.is_wanted()) yaml.write(to_production_yaml(report));
}

// Returns the exit code.
int run(const AdviseRequest& request) {
  require<ConfigError>(
      launcher_size() <= 1,
      "advise: expected to be started alone, got a job of several processes: --ranks and --hardware say what a step "
      "of several ranks is predicted on");
  const Config given = load_config(request.config, request.overrides);
  Config config = at_step(given, 0);
  config.precision_adaptive = {};  // its settings need its levels, which at_step() has removed
  if (phase_count(given) > 1) {
    log_info("{}: this is about the first precision; give another one's settings to look at that",
             adapts(given) ? "precision.adaptive" : "precision.schedule");
  }
  if (!request.hardware.empty()) {  // the devices and transports of this program do not matter
    config.device = "auto";
    config.comm.backend = "auto";
  }
  require_known_names(config);
  require<ConfigError>(
      !request.hardware.empty() || request.run.ranks <= 1,
      "--ranks: one rank of this device is measured, got {}: name the devices of several ranks by --hardware",
      request.run.ranks);
  validate_for_ranks(config, request.run.ranks);
  if (!request.budget.empty()) return plan(request, config) ? 0 : kBudgetMissed;
  if (!request.measured.empty()) {
    recommend(request, config);
    return 0;
  }
  const std::vector<Candidate> candidates = candidates_of(config, request.formats);
  require_different_files({{"--json", request.json}, {"--html", request.html}}, files_read(request.config, config));
  OutputFile html("--html", request.html), json("--json", request.json);
  PresentAdvice found;
  if (request.hardware.empty()) {
    found = advise_present_device(request.config, config, candidates, request.run.rounds);
  } else {
    found.advice = advise(request.config, config, candidates, request.run.ranks, find_hardware(request.hardware));
  }
  ReportText text = to_text(found.advice);
  Json figures = to_json(found.advice);
  if (request.hardware.empty()) {
    add_comparison(found.comparison, text);
    figures["comparison"] = found.comparison;
  }
  print(text.text());
  json.write(figures);
  html.write(page_document(kAdvicePage, figures));
  return 0;
}

// The options of plans, which need --budget.
void add_plan_options(CLI::App& advise, VerbOptions& options, AdviseRequest& request) {
  PlanRunRequest& run = request.run;
  constexpr int64_t kMostSteps = int64_t{1} << 40;
  const std::vector<CLI::Option*> all = {
      options.add("--damage", request.damage,
                  "allocate precision by the measured loss, or by a score of the sensitivity analysis: loss, fisher, "
                  "hessian, mi (mutual information), entropy"),
      options.list("--recipes", run.plan.recipes,
                   "8-bit and 4-bit recipes that a plan may use: current,block,mxfp8,nvfp4, or none"),
      options
          .list("--state", request.state,
                "what a plan decides besides layers: moments,masters,wire (needs several ranks), or none; not with "
                "--damage")
          ->default_str(fmt::format("[{}]", fmt::join(run.state, ","))),
      options.add("--plan", request.plan, "write the plan to this file"),
      options.count("--warm-up", run.warm_up, 0, kMostSteps, "training steps in fp32 before layers are evaluated"),
      options.count("--batches", run.batches, 2, 10000,
                    "batches to evaluate each layer on; two or more, for an error estimate"),
      options
          .add("--seeds", run.validation.most_seeds, "most seeds of the runs that validate the plan; 0: no validation")
          ->check(zero_or(kFirstLook, 1000)),
      options.count("--steps", run.validation.steps, 1, kMostSteps, "most steps of each of these runs"),
      options
          .add("--time-pairs", run.validation.time_pairs,
               "most pairs of step times, plan against uniform precisions; 0: compare losses only")
          ->check(zero_or(StepTimeOptions().first_look, 1000)),
      advise.add_flag("--yes", run.accepts_much,
                      "go on where a plan takes more than an hour by estimate, or more memory than there is")};
  for (CLI::Option* const option : all) option->needs(advise.get_option("--budget"));
}

}  // namespace

std::function<int()> add_advise_options(CLI::App& advise) {
  const auto request = std::make_shared<AdviseRequest>();
  VerbOptions options(advise);
  advise.add_option("config", request->config, "YAML file")->required();
  advise.add_option("overrides", request->overrides, "settings that replace the file's: precision.recipe=mxfp8");
  options.add("--hardware", request->hardware,
              "predict for a device by its data sheet: t4, v100, a100, h100, h200, b200, tpu-v3, gaudi2; without it, "
              "measure the device of this machine; with --measured several, separated by commas");
  options.count("--ranks", request->run.ranks, 1, 1 << 20, "number of devices in one node, one rank each");
  options.list("--formats", request->formats,
               fmt::format("precisions to compare, some of {}; default: all but fp64, bf16x6 and bf16x3",
                           fmt::join(uniform_precisions(), ",")));
  options.count("--rounds", request->run.rounds, 1, 1000,
                "rounds of timing kernels and steps by turns on this machine's device");
  options.html_and_json(request->html, request->json);
  CLI::Option* const measured = options
                                    .add("--measured", request->measured,
                                         "recommend the fastest precision that did no damage in this file of `mantissa "
                                         "compare --json`, and say how to run it in production")
                                    ->excludes("--formats")
                                    ->excludes("--html");
  options
      .add("--output", request->output, "also write a configuration for production to this file, for one --hardware")
      ->needs(measured);
  options
      .add("--budget", request->budget,
           "plan the precision of each layer, optimizer state and gradients on the wire under a budget: time=12ms, "
           "time=90%, memory=1.5GiB, loss=0.01, or with --hardware energy=80% or energy=12J")
      ->excludes(measured);
  add_plan_options(advise, options, *request);
  advise.footer(
      "Exit codes: 0 done, 9 the plan is written but misses the budget, 2 configuration or command line, also a plan "
      "that\n"
      "takes much; 8 memory. `mantissa --help` has the others.");
  return [request] {
    int code = 0;
    const int failed = run_reported([&] { code = run(*request); });
    return failed != 0 ? failed : code;
  };
}

}  // namespace mantissa
