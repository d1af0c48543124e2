// A training: session after session, through the phases and levels of its precision.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tools/train/trainer.h"

namespace mantissa {

struct TrainingHooks {
  // Called when a session begins, with the state that it begins in: adds its observers.
  std::function<void(Session& session, RunState& state, const Start& start, TrainObservers& observers)> begin;
  std::shared_ptr<const Batches> batches{};  // null: those of open_common_batches()
  std::optional<std::string> weights{};      // nothing: those of find_initial_weights()
  std::optional<CheckpointFile> base{};      // of provide_base(); nothing: frozen weights are read where they are
  StopRequest* stop = nullptr;               // see TrainStep
  // Called with an error before the session is destroyed: its destructor waits for the device and may hang. May not
  // return.
  std::function<void(const std::exception& error)> on_error = [](const std::exception&) {};
};

// Trains `run`, through the phases and levels of its precision, from the checkpoint or the first weights to
// TrainConfig::last_step(), or until a rank asks to stop. Errors: see Trainer::run(). Collective.
Ending train_run(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
                 Communicator& communicator);

}  // namespace mantissa
