// Trainer: the loop and nothing else.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <vector>

#include "tools/train/adaptive_state.h"
#include "tools/train/checkpoint.h"
#include "tools/train/evaluation.h"
#include "tools/train/fallback_state.h"
#include "tools/train/metrics.h"
#include "tools/train/probe_recorder.h"
#include "tools/train/run_profile.h"
#include "tools/train/statistics.h"
#include "tools/train/train_step.h"

namespace mantissa {

// Why a session goes on with the training of another.
struct PrecisionSwitch {
  std::string cause{};                                // "precision.schedule[0]"
  std::vector<std::string> changes{};                 // "precision.compute: fp32 -> bf16"
  nlohmann::json figures = nlohmann::json::object();  // more entries for the record of the metrics
};

// What a trainer goes on from: nothing, what a checkpoint gave, or what another trainer had come to.
struct TrainerStart {
  nlohmann::json state{};                       // that of Trainer::state(), or null
  std::optional<AdaptivePrecision> adaptive{};  // where the precision adapts
  std::optional<PrecisionSwitch> by_switch{};
};

class Trainer {
 public:
  // `session` and `checkpoints` have come as far as `start` says.
  Trainer(Session& session, TrainingCheckpoints& checkpoints, const TrainerStart& start);

  // The step that this start of the program ends at: train.steps, or train.stop_at_step where that is given.
  static int64_t last_step(const Config& config);

  // Trains up to step `end`, with evaluation, samples and checkpoints on the way, or until the precision has to change
  // for another reason, which it returns. FaultError after faults.max_consecutive faults in a row. Collective.
  std::optional<PrecisionSwitch> run(int64_t end);
  // At last_step(): evaluates, saves and tells what there was. CheckpointError where nothing could be saved.
  // Collective.
  void finish();
  // Before another session goes on: tells what this one alone knows. Collective.
  void leave();
  // What a trainer of another session needs.
  nlohmann::json state() const;

 private:
  bool leader() const { return session_.communicator.rank() == 0; }
  // The validation loss; nothing where there is no validation.
  std::optional<double> evaluate();
  // Tells the ladder of precisions of an evaluation that is due, and of no other: when a program stops plays no part.
  void watch_evaluation(std::optional<double> loss);
  void sample();
  // False after a warning when nothing could be saved.
  bool save();
  void take(const std::vector<StepReport>& steps);
  void report(const StepReport& step);
  // The switch that is to come, with one more cause.
  PrecisionSwitch& plan_switch(const std::string& cause);
  // Whether layers go back, before a step.
  void watch_returns(int64_t step);
  // Whether layers are lifted, after one.
  void watch_overflows(const StepReport& step);
  // What a layer that can be lifted does: linear or attention.
  Op op_of(const std::string& layer) const;
  void lift(const std::string& layer, const std::string& cause);
  // Tells the ladder of precisions of a step, or of gradients that were looked at, and changes the level where that has
  // to be done at once.
  void watch_signals(const StepReport& step);
  void watch_underflow(const ProbedStep& step);
  // Whether it is on the right level, before a step.
  void watch_level(int64_t step);
  void change_level(int64_t step);
  // Counts faults in a row and stops the run when there are too many.
  void watch_faults(const StepReport& step);
  void announce(const TrainerStart& start);
  void report_profile();
  void summarise() const;

  Session& session_;
  TrainingCheckpoints& checkpoints_;
  std::unique_ptr<ProbeRecorder> probes_;  // where probe.enabled
  TrainStep step_;
  Evaluation evaluation_;
  RunStatistics statistics_;
  std::optional<MetricsFile> metrics_;  // rank 0
  SpeedContext speed_;
  std::optional<RunProfile> profile_;
  int faults_in_a_row_ = 0;
  PrecisionFallback fallback_;
  std::optional<AdaptivePrecision> adaptive_;
  std::optional<PrecisionSwitch> switch_;  // that is to come
  int64_t saved_step_ = -1;
  std::optional<double> first_validation_loss_, last_validation_loss_;
};

}  // namespace mantissa
