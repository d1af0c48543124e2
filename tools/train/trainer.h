// Trainer: the loop and nothing else.
#pragma once

#include "tools/train/checkpoint.h"
#include "tools/train/evaluation.h"
#include "tools/train/metrics.h"
#include "tools/train/probe_recorder.h"
#include "tools/train/run_profile.h"
#include "tools/train/statistics.h"
#include "tools/train/train_step.h"

namespace mantissa {

class Trainer {
 public:
  // `session` is fresh or resumed; `checkpoints` may have resumed it and then gives `resumed`, its "run" entry.
  Trainer(Session& session, TrainingCheckpoints& checkpoints, const nlohmann::json& resumed);

  // Trains up to train.steps (or train.stop_at_step), with evaluation, samples and checkpoints on the way. FaultError
  // after faults.max_consecutive faults in a row. Collective.
  void run();

 private:
  bool leader() const { return session_.communicator.rank() == 0; }
  void evaluate();
  void sample();
  // False after a warning when nothing could be saved.
  bool save();
  void take(const std::vector<StepReport>& steps);
  void report(const StepReport& step);
  // Counts faults in a row and stops the run when there are too many.
  void watch_faults(const StepReport& step);
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
  int64_t saved_step_ = -1;
  std::optional<double> first_validation_loss_, last_validation_loss_;
};

}  // namespace mantissa
