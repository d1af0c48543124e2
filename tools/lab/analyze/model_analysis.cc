#include "tools/lab/analyze/model_analysis.h"

#include <algorithm>
#include <filesystem>

#include "amp/grad_scaler.h"
#include "comm/communicator.h"
#include "core/backend/registry.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "core/io/checkpoint_store.h"
#include "tools/config/data_paths.h"
#include "tools/config/precision_phases.h"
#include "tools/run/job/job.h"
#include "tools/run/state/run_folder.h"
#include "tools/run/state/run_state.h"
#include "tools/train/checkpoint.h"
#include "tools/train/run_profile.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

// A point that a training starts from.
struct Point {
  std::string name;
  std::string checkpoint;  // a folder; "none": from the first weights
  int64_t step = 0;
};

bool is_run(const std::string& target) { return std::filesystem::is_directory(target); }

// The points as rank 0 sees them: a run that is still training adds and removes checkpoints.
std::vector<Point> points_of(const std::string& target, Communicator& communicator) {
  std::vector<std::string> mine;  // name, checkpoint and step of each point
  const auto add = [&mine](const char* name, const std::string& checkpoint, int64_t step) {
    mine.insert(mine.end(), {name, checkpoint, std::to_string(step)});
  };
  if (communicator.rank() == 0 && !is_run(target)) add("early", "none", 0);
  if (communicator.rank() == 0 && is_run(target)) {
    const std::string newest = find_checkpoint_folder(target);
    const int64_t last = open_checkpoint(newest).step;
    const CheckpointStore store(checkpoint_root(target), {});
    const auto steps = store.steps();
    const bool has_early = !steps.empty() && 2 * steps.back() <= last;
    add("early", has_early ? store.folder(steps.back()) : "none", has_early ? steps.back() : 0);
    add("late", newest, last);
  }
  const std::vector<std::string> chosen = all_gather_text_lists(communicator, mine)[0];
  std::vector<Point> points;
  for (size_t i = 0; i < chosen.size(); i += 3) points.push_back({chosen[i], chosen[i + 1], std::stoll(chosen[i + 2])});
  return points;
}

// The run's configuration in the precision that it has at this point.
Config config_at(const Config& run, const Point& point) {
  if (point.checkpoint == "none") return at_step(run, point.step);
  return read_state(point.checkpoint,
                    [&] { return config_of(run, point.step, read_manifest(point.checkpoint).state.at("run")); });
}

Config probed_config(const Config& run, const Point& point) {
  Config config = without_outputs(config_at(run, point));
  require<ConfigError>(
      !config.precision.is_fp64(),
      "precision.compute: fp64 rounds nothing that could be examined; give the precision in which the model is to be "
      "examined, such as precision.compute=bf16");
  config.probe.enabled = true;
  config.probe.interval = 1;
  config.checkpoint.resume = point.checkpoint;
  return config;
}

// The same steps with gradients of activations that keep all magnitudes.
Config in_fp32(Config config) {
  config.precision = PrecisionConfig();
  config.precision.compute = DType::kF32;
  config.optimizer.adamw.master = MasterWeights::kF32;
  config.optimizer.adamw.weight_rounding = WeightRounding::kNearest;
  return config;
}

struct Trained {
  std::vector<ProbedStep> steps{};
  int64_t first_step = 0;
  double first_loss = 0.0;
  int64_t without_target = 0;
  std::optional<LearningRateInstead> learning_rate_instead{};
};

// The last positive rate of a schedule that is 0 after so many steps; nothing if it is positive then.
std::optional<double> last_learning_rate(const ScheduleOptions& schedule, int64_t applied_steps) {
  if (learning_rate(schedule, applied_steps) > 0.0) return std::nullopt;
  for (int64_t step = applied_steps; step > 0; --step) {
    if (const double rate = learning_rate(schedule, step - 1); rate > 0.0) return rate;
  }
  return std::nullopt;
}

// With `scales_of`, takes the loss scales of these steps, which start at the same point.
Trained train(Config config, int64_t batches, Communicator& communicator,
              const std::vector<ProbedStep>* scales_of = nullptr) {
  Session session(config, communicator);  // reads the schedule from `config`, which changes below
  if (const auto point = find_resume_point(config, communicator)) resume(session, config, *point);
  ScheduleOptions& schedule = config.optimizer.schedule;
  // Every step is examined, and there are few: a CPU can afford to show the rounding of fp32 itself.
  const DType reference = find_backend(session.device.backend).computes_on_host ? DType::kF64 : DType::kF32;
  RunProbe probe = make_probe(session.config, session.sharded, reference);
  ProbeExaminer examiner(probe);
  TrainStep step(session, {&examiner});
  Trained trained{.first_step = session.next_step};
  step.calibrate();
  while (static_cast<int64_t>(trained.steps.size()) < batches) {
    if (scales_of != nullptr) {  // whether or not the step overflows
      const float scale = scales_of->at(trained.steps.size()).loss_scale;
      session.scaler = GradScaler({.mode = ScalerMode::kStatic, .init_scale = scale, .min_scale = 0.0f});
    }
    if (const auto instead = last_learning_rate(schedule, session.sharded.optimizer.applied_steps())) {
      schedule = {.kind = ScheduleKind::kConstant, .peak = *instead, .final_rate = *instead};
      trained.learning_rate_instead = {.rate = *instead, .from_step = session.next_step + 1};
    }
    for (const StepReport& report : step.run()) {
      if (report.step == trained.first_step) trained.first_loss = report.loss;
      trained.without_target += report.lacks_targets();
      if (report.probed) trained.steps.push_back(*report.probed);
    }
  }
  return trained;
}

// The settings that a run was saved with. Overrides of the precision replace that of the checkpoint and later phases.
std::string saved_settings(const Checkpoint& checkpoint, const std::string& source,
                           const std::vector<std::string>& overrides) {
  const auto yaml = checkpoint.state.at("config").get<std::string>();
  const auto changes_precision = [](const std::string& assignment) {
    return assignment.starts_with("precision.") && !assignment.starts_with("precision.schedule") &&
           !assignment.starts_with("precision.adaptive");
  };
  if (std::ranges::none_of(overrides, changes_precision)) return yaml;
  const Config saved = parse_config(yaml, source);
  if (phase_count(saved) == 1) return yaml;
  log_info("{} of the run is dropped, since another precision is given; other settings are those of step {}",
           adapts(saved) ? "precision.adaptive" : "precision.schedule", checkpoint.step);
  return to_yaml(config_of(saved, checkpoint.step, checkpoint.state.at("run")));
}

Config config_of_run(const ModelRequest& request) {
  const Checkpoint checkpoint = open_checkpoint(find_checkpoint_folder(request.target));
  const std::string source = checkpoint.folder + "/manifest.json";
  return read_state(checkpoint.folder, [&] {
    ConfigOrigins origins;
    Config run =
        parse_config(saved_settings(checkpoint, source, request.overrides), source, request.overrides, &origins);
    const std::filesystem::path folder = std::filesystem::path(checkpoint.folder).parent_path().parent_path();
    if (is_config_of_run(folder / "config.yaml")) relocate(run, folder, origins);
    return run;
  });
}

}  // namespace

Config configuration_of(const ModelRequest& request) {
  Config config = is_run(request.target) ? config_of_run(request) : load_config(request.target, request.overrides);
  // Gives the same bits on any number of ranks, and shows weights before they are rounded.
  config.comm.gather = WeightGather::kWorking;
  return config;
}

Config without_outputs(Config config) {
  config.checkpoint.allow_changes = true;
  config.train.run_dir += "/analysis";  // neither read nor created
  config.train.sample_tokens = 0;
  config.profile = false;
  config.cuda.graph = false;
  return config;
}

ModelAnalysis analyze_model(const ModelRequest& request, const Config& config, Communicator& communicator) {
  const std::vector<Point> points = points_of(request.target, communicator);
  ModelAnalysis analysis{.title = request.target,
                         .config = config_at(config, points.back()),
                         .ranks = communicator.size(),
                         .batches = request.batches};
  for (const Point& point : points) {
    const Config as_configured = probed_config(config, point);
    const Trained trained = train(as_configured, request.batches, communicator);
    CheckpointFindings found;
    if (std::ranges::count(ops_of(as_configured), DType::kF16, &PlacedOp::compute) > 0) {  // stores gradients in fp16
      Trained exact = train(in_fp32(as_configured), request.batches, communicator, &trained.steps);
      found = findings_of(trained.steps, exact.steps, request.loss_scale);
      take_magnitudes(trained.steps, std::move(exact.steps), found);
    } else {
      found = findings_of(trained.steps, trained.steps, request.loss_scale);
    }
    found.name = point.name;
    found.config = as_configured;
    found.step = trained.first_step;
    found.loss = trained.first_loss;
    found.without_target = trained.without_target;
    found.learning_rate_instead = trained.learning_rate_instead;
    analysis.checkpoints.push_back(std::move(found));
  }
  return analysis;
}

}  // namespace mantissa
