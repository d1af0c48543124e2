#include "tools/lab/advise_verb.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/run_reported.h"
#include "tools/lab/advise/device/present_device.h"
#include "tools/lab/advise/plan/differentiable.h"
#include "tools/lab/advise/plan/plan_run.h"
#include "tools/config/precision_phases.h"
#include "tools/config/validation.h"
#include "tools/lab/report/output_file.h"
#include "tools/train/launch.h"

namespace mantissa {
namespace {

Advice advise_hardware(const AdviseRequest& request, const Config& config, const std::vector<Candidate>& candidates) {
  const Hardware& hardware = find_hardware(request.hardware);
  Roofline roofline(hardware);
  return advise(request.config, config, candidates, request.ranks, absent_target(hardware, roofline));
}

void require_solver(const std::string& name) {
  std::vector<std::string_view> names = plan_solver_names();
  names.push_back(kDifferentiable);
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw ConfigError(fmt::format("--solver: expected one of {}, got {}", fmt::join(names, ", "), name));
}

void plan(const AdviseRequest& request, const Config& config) {
  if (request.seeds != 0 && request.seeds < kFirstLook) {
    throw ConfigError(
        fmt::format("--seeds: expected 0 for no validation, or at least {}, got {}", kFirstLook, request.seeds));
  }
  if (const int64_t least = StepTimeOptions().first_look; request.time_pairs != 0 && request.time_pairs < least) {
    throw ConfigError(
        fmt::format("--time-pairs: expected 0 for none, or at least {}, got {}", least, request.time_pairs));
  }
  const auto unless_none = [](const std::vector<std::string>& given) {
    return given == std::vector<std::string>{"none"} ? std::vector<std::string>() : given;
  };
  const PlanRunRequest run{
      // The type is named for GCC 12, which destroys a member in plain braces twice where one behind it throws.
      .plan = PlanRequest{.budget = parse_budget(request.budget),
                          .solver = request.solver,
                          .recipes = unless_none(request.recipes)},
      .hardware = request.hardware.empty() ? nullptr : &find_hardware(request.hardware),
      .ranks = request.ranks,
      .warm_up = request.warm_up,
      .batches = request.batches,
      .state = unless_none(request.state),
      .validation = {.steps = request.steps, .most_seeds = request.seeds, .time_pairs = request.time_pairs}};
  require_solver(request.solver);  // before anything is trained
  require_different_files({{"--plan", request.plan}, {"--json", request.json}}, files_read(request.config, config));
  OutputFile json("--json", request.json), yaml("--plan", request.plan);
  const FoundPlan found = find_plan(run, request.config, config);
  const std::string text = to_text(found.advice);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (yaml.is_wanted()) yaml.write(to_plan_yaml(found.advice, request.config));
  if (json.is_wanted()) json.write(to_json(found.advice));
}

void run(const AdviseRequest& request) {
  if (launcher_size() > 1) {
    throw ConfigError(
        "advise: expected to be started alone, got a job of several processes: --ranks and --hardware say "
        "what a step of several ranks is predicted on");
  }
  const Config given = load_config(request.config, request.overrides);
  Config config = at_step(given, 0);
  config.precision_adaptive = {};  // what a ladder watches has no meaning without its levels
  if (phase_count(given) > 1) {
    log_info("{}: this is about the precision that it begins with; settings of another can be given in its place",
             adapts(given) ? "precision.adaptive" : "precision.schedule");
  }
  if (!request.hardware.empty()) {  // what this program and machine have plays no part
    config.device = "auto";
    config.comm.backend = "auto";
  }
  require_known_names(config);
  if (request.hardware.empty() && request.ranks > 1) {
    throw ConfigError(fmt::format(
        "--ranks: one rank of this device is measured, got {}: name the devices of several ranks by --hardware",
        request.ranks));
  }
  validate_for_ranks(config, request.ranks);
  if (!request.budget.empty()) return plan(request, config);
  const std::vector<Candidate> candidates = candidates_of(config, request.formats);
  require_different_files({{"--json", request.json}}, files_read(request.config, config));
  OutputFile json("--json", request.json);
  std::string text;
  nlohmann::json data;
  if (request.hardware.empty()) {
    const PresentAdvice found = advise_present_device(request.config, config, candidates, request.rounds);
    text = to_text(found.advice) + to_text(found.comparison);
    data = to_json(found.advice);
    data["comparison"] = to_json(found.comparison);
  } else {
    const Advice found = advise_hardware(request, config, candidates);
    text = to_text(found);
    data = to_json(found);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (json.is_wanted()) json.write(data);
}

}  // namespace

int advise_verb(const AdviseRequest& request) {
  return run_reported([&] { run(request); });
}

}  // namespace mantissa
