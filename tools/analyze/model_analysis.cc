#include "tools/analyze/model_analysis.h"

#include <algorithm>
#include <filesystem>

#include "core/base/log.h"
#include "tools/train/checkpoint.h"
#include "tools/train/probe_recorder.h"
#include "tools/train/train_step.h"

namespace mantissa {
namespace {

// Where a training starts: from a checkpoint's folder, or ("none") from the first weights.
struct Point {
  std::string name, checkpoint;
};

bool is_run(const std::string& target) { return std::filesystem::is_directory(target); }

std::vector<Point> points_of(const std::string& target) {
  if (!is_run(target)) return {{"early", "none"}};
  const std::string newest = find_checkpoint_folder(target);
  const int64_t last = open_checkpoint(newest).step;
  const CheckpointStore store(checkpoint_root(target),
                              {.warn = [](const std::string& text) { spdlog::warn("{}", text); }});
  Point early{"early", "none"};
  if (const auto steps = store.steps(); !steps.empty() && 2 * steps.back() <= last) {
    early.checkpoint = store.folder(steps.back());
  }
  return {early, {"late", newest}};
}

// Of a training that is looked at and leaves nothing behind.
Config analysed(Config config, const Point& point) {
  config.probe.enabled = true;
  config.probe.interval = 1;
  config.checkpoint.resume = point.checkpoint;
  config.checkpoint.allow_changes = true;
  config.train.run_dir += "/analysis";  // which is neither read nor made
  config.train.sample_tokens = 0;
  config.profile = false;
  config.cuda.graph = false;
  return config;
}

// The same with gradients of activations that keep every magnitude.
Config in_fp32(Config config) {
  config.precision = PrecisionConfig();
  config.precision.compute = DType::kF32;
  config.optimizer.adamw.master = MasterWeights::kF32;
  config.optimizer.adamw.weight_rounding = WeightRounding::kNearest;
  config.comm.gather = WeightGather::kWorking;
  return config;
}

struct Trained {
  std::vector<ProbedStep> steps;
  int64_t first_step = 0;
  double first_loss = 0.0;
  int64_t skipped = 0;
};

Trained train(const Config& config, int64_t batches, Communicator& communicator) {
  Session session(config, communicator);
  TrainingCheckpoints checkpoints(session);
  checkpoints.resume();
  RunProbe probe(config, linear_layers(config), parts_of(session));
  TrainStep step(session, &probe);
  Trained trained{.steps = {}, .first_step = session.next_step};
  step.calibrate();
  while (static_cast<int64_t>(trained.steps.size()) < batches) {
    for (const StepReport& report : step.run()) {
      if (report.step == trained.first_step) trained.first_loss = report.loss;
      trained.skipped += report.applied ? 0 : 1;
    }
    if (auto probed = step.take_probed()) trained.steps.push_back(std::move(*probed));
  }
  return trained;
}

}  // namespace

Config configuration_of(const ModelRequest& request) {
  if (!is_run(request.target)) return load_config(request.target, request.overrides);
  const Checkpoint checkpoint = open_checkpoint(find_checkpoint_folder(request.target));
  return parse_config(checkpoint.state.at("config").get<std::string>(), checkpoint.folder + "/manifest.json",
                      request.overrides);
}

ModelAnalysis analyze_model(const ModelRequest& request, const Config& config, Communicator& communicator) {
  ModelAnalysis analysis{.title = request.target,
                         .config = config,
                         .ranks = communicator.size(),
                         .batches = request.batches,
                         .checkpoints = {}};
  for (const Point& point : points_of(request.target)) {
    const Config as_configured = analysed(config, point);
    const Trained trained = train(as_configured, request.batches, communicator);
    const bool loses_magnitudes = config.precision.compute == DType::kF16;
    const Trained exact = loses_magnitudes ? train(in_fp32(as_configured), request.batches, communicator) : Trained();
    CheckpointFindings found = findings_of(trained.steps, loses_magnitudes ? exact.steps : trained.steps);
    found.name = point.name;
    found.step = trained.first_step;
    found.loss = trained.first_loss;
    found.skipped = trained.skipped;
    analysis.checkpoints.push_back(std::move(found));
  }
  return analysis;
}

}  // namespace mantissa
