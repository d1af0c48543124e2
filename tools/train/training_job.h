// TrainingJob: what `mantissa train` does around a training: checks, the run folder, the watchdog, and its observers.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tools/run/guard/black_box.h"
#include "tools/run/guard/watchdog.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/state/run_folder.h"
#include "tools/train/run_evaluations.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/trainer.h"

namespace mantissa {

class TrainingJob {
 public:
  // All must outlive the object.
  TrainingJob(const Config& run, const ConfigOrigins& origins, StopRequest& stop, Communicator& communicator)
      : run_(run), origins_(origins), stop_(stop), communicator_(communicator) {}

  // Checks settings, memory and data, finds the checkpoint, and takes the run folder. False: the run has no step left.
  // An error leaves no new folder. Collective.
  bool prepare();
  // Starts the watchdog and returns the arguments of train_run(). Collective.
  TrainingHooks start();
  const std::optional<ResumePoint>& checkpoint() const { return checkpoint_; }
  // The ranks, under the eyes of the watchdog. After start().
  Communicator& communicator() { return *watched_; }
  // After the training: kOk or kPreempted. Errors end the job. Collective.
  ExitCode finish(Ending ending);
  // Records an error of train_run().
  void record_failure(const std::exception& error);

 private:
  // Rank 0 locks the run folder, once.
  void hold_folder();
  // CommError, MemoryError and ConfigError that are found before there is a folder.
  void check();
  bool is_finished();
  // A session begins: adds its observers.
  void begin(Session& session, RunState& state, const Start& start, TrainObservers& observers);
  // Only now: a start that was refused leaves the files of the run.
  void begin_run(Session& session, const Start& start);
  [[noreturn]] void leave(const std::exception& error);

  const Config& run_;
  const ConfigOrigins& origins_;
  StopRequest& stop_;
  Communicator& communicator_;
  int threads_ = 0;
  std::vector<MemoryTable> predicted_;  // by phase
  std::optional<RunFolder> folder_;     // rank 0
  bool has_folder_ = false;             // on rank 0, before this start
  std::optional<ResumePoint> checkpoint_;
  std::shared_ptr<const Batches> batches_;
  std::string weights_;
  RunEvaluationList evaluations_;
  std::optional<BlackBox> box_;
  std::optional<Watchdog> watchdog_;
  std::unique_ptr<Communicator> watched_;
  std::optional<Heartbeat> heartbeat_;  // rank 0
  std::optional<int64_t> unsaved_step_;
};

// A training as `mantissa train` does it, up to its exit code. Errors: see train_run(). Collective.
ExitCode run_training(const Config& run, const ConfigOrigins& origins, StopRequest& stop, Communicator& communicator);

}  // namespace mantissa
