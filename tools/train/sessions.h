// Sessions: what a training keeps between its sessions, and where the next session starts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/train/trainer.h"

namespace mantissa {

// Calls are made on all ranks alike, since most are collective.
class Sessions {
 public:
  // As for train_run(). References must outlive the object.
  Sessions(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
           Communicator& communicator);

  // ---- For the next session: the configuration of its phase, given parts, and the step at which the phase ends.
  const Config& config();
  SessionParts parts() const;
  int64_t end() const;
  RunState& state() { return state_; }
  // Gives the session weights, optimizer and counters. DamagedCheckpoint: see resume().
  void set_state(Session& session) const;
  // The observers that every training needs, and those of the hooks.
  TrainObservers observers(Session& session);

  // ---- After a session.

  // `why`: of Trainer::run(). Returns how the run ends; nothing: another session follows.
  std::optional<Ending> end_session(Trainer& trainer, std::optional<PrecisionSwitch> why);
  // The session's checkpoint could not be used: takes an older one. Rethrows where there is none, or none else will do.
  void pass_over_checkpoint(const DamagedCheckpoint& error);

 private:
  // The state of the run where the session starts. `before`: of the session that it follows.
  RunState state_at_start(const RunState& before) const;
  // Adds the settings that differ between this phase and the one after `steps` steps.
  PrecisionSwitch with_changes(PrecisionSwitch why, int64_t steps) const;

  const Config& run_;
  const TrainingHooks& hooks_;
  Communicator& communicator_;
  const std::shared_ptr<const Batches> batches_;  // open files: they are still there, and still the same
  const std::shared_ptr<StruckFaults> struck_;    // test.faults in the sessions before
  std::string first_weights_;
  std::string frozen_;  // for load_frozen_weights()
  Start start_;
  RunState state_;
  int phase_ = 0;
  Config config_;  // of that phase
  std::vector<std::string> passed_over_;
};

}  // namespace mantissa
