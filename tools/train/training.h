// A training from its start to its end: one session after the other, each in one precision; and `mantissa train`.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/train/checkpoint.h"
#include "tools/train/trainer.h"

namespace mantissa {

// How a session begins.
struct SessionStart {
  const PrecisionSwitch* by_switch = nullptr;  // why it continues another one; nullptr: it is the first
  const Rollback* rollback = nullptr;          // why it returns to a checkpoint
  bool resumed = false;                        // from a checkpoint

  // The steps whose records a file of the run keeps; nothing where a run begins, which leaves other runs' files aside.
  std::optional<int64_t> kept_steps(int64_t next_step) const {
    return next_step > 0 || rollback != nullptr ? std::optional<int64_t>(next_step) : std::nullopt;
  }
};

struct TrainingHooks {
  // Called when a session begins, with the state that it begins in: adds its observers to `observers`, which hold
  // those that every training needs, and returns the probe, if there is one.
  std::function<RunProbe*(Session& session, RunState& state, const SessionStart& start, TrainObservers& observers)>
      begin;
  std::shared_ptr<const Batches> batches{};  // null: those of open_common_batches()
  std::optional<std::string> weights{};      // nothing: those of find_initial_weights()
  std::optional<CheckpointFile> base{};      // of provide_base(); nothing: frozen weights are read where they are
  StopRequest* stop = nullptr;               // see TrainStep
  // Called with an error before the session is destroyed: its destructor waits for the device and may hang. May not
  // return.
  std::function<void(const std::exception& error)> on_error = [](const std::exception&) {};
};

// Trains `run`, through the phases and levels of its precision, from the checkpoint or the first weights to
// TrainConfig::last_step(), or until a rank asks to stop. FaultError, DataError: see Trainer::run(). Collective.
Ending train_run(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
                 Communicator& communicator);

// `mantissa train`: from a configuration file to a finished run. Returns the exit code (see core/base/error.h). Errors
// of a job of several ranks end the whole job.
int train_verb(const std::string& config_path, const std::vector<std::string>& overrides);

}  // namespace mantissa
