#include "tools/train/training.h"

#include <algorithm>
#include <utility>

#include "core/base/log.h"
#include "tools/config/precision_phases.h"
#include "tools/model/runtime/open_model.h"
#include "tools/train/initial_weights.h"
#include "tools/train/session_observers.h"

namespace mantissa {
namespace {

// The state that a training keeps between its sessions, and where the next session starts. Calls are made on all ranks
// alike, since most are collective.
class Sessions {
 public:
  // As for train_run(). References must outlive the object.
  Sessions(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
           Communicator& communicator)
      : run_(run),
        hooks_(hooks),
        communicator_(communicator),
        batches_(hooks.batches ? hooks.batches : open_common_batches(run, communicator)),
        struck_(std::make_shared<StruckFaults>()),
        state_(run),
        config_(run) {
    if (!checkpoint) first_weights_ = hooks.weights ? *hooks.weights : find_initial_weights(run, communicator);
    frozen_ = hooks.base   ? run.train.run_dir + "/" + kBaseFile
              : checkpoint ? base_file_of(checkpoint->folder)
                           : first_weights_;
    start_.from = first_weights_;
    if (checkpoint) start_.from = *checkpoint;
    state_ = state_at_start(state_);
  }

  // The configuration of the phase in which the next session trains.
  const Config& begin_phase() {
    phase_ = phase_of(run_, start_.steps_done(), state_);
    config_ = with_lifts(in_phase(run_, phase_), state_.fallback);
    return config_;
  }
  SessionParts parts() const {
    return {.batches = [this](const Config&, Objective) { return batches_; }, .struck = struck_};
  }
  // The step at which the phase ends.
  int64_t end() const { return std::min(phase_end(run_, phase_), run_.train.last_step()); }
  RunState& state() { return state_; }

  // Gives the session weights, optimizer and counters. DamagedCheckpoint: see resume().
  void set_state(Session& session) const {
    load_frozen_weights(session, frozen_);
    if (const auto* const held = std::get_if<HeldState>(&start_.from)) held->hand_over(session);
    if (start_.checkpoint() != nullptr) resume(session, run_, *start_.checkpoint());
    const auto* const weights = std::get_if<std::string>(&start_.from);
    if (weights != nullptr && !weights->empty()) load_initial_weights(session, *weights);
    if (start_.rollback && !start_.rollback->changes_precision) {
      session.skipped_batches = start_.rollback->next_batch - session.next_step;
    }
  }

  // The observers of every training, and the observers of the hooks.
  TrainObservers observers(Session& session) {
    const int64_t evaluated_at = start_.checkpoint() != nullptr ? start_.steps_done() : -1;
    TrainObservers observers = {std::make_shared<Validation>(session),
                                std::make_shared<PrecisionControl>(evaluated_at, phase_names(run_))};
    hooks_.begin(session, state_, start_, observers);
    observers.push_back(std::make_shared<FaultLimits>(session));  // last: it may end the run
    return observers;
  }

  // After a session. `why`: of Trainer::run(). Returns how the run ends; nothing: another session follows.
  std::optional<Ending> end_session(Trainer& trainer, std::optional<PrecisionSwitch> why) {
    Session& session = trainer.session();
    if (const std::optional<Rollback> rollback = trainer.rollback()) {
      trainer.leave();
      start_ = {.from = first_weights_, .rollback = rollback};
      if (rollback->changes_precision) start_.by_switch = with_changes(std::move(*why), session.next_step);
      if (state_.rollback_point) start_.from = find_rollback_point(run_, *state_.rollback_point, communicator_);
      passed_over_.clear();  // since then, the run may have saved them anew
      state_ = state_at_start(state_);
      return std::nullopt;
    }
    if (trainer.stopped_by() || session.next_step >= run_.train.last_step()) {
      const Ending ending = trainer.stopped_by() ? Ending::kStopped : Ending::kDone;
      trainer.finish(ending);
      return ending;
    }
    trainer.leave();
    if (!why) why = PrecisionSwitch{.cause = phase_path(run_, phase_of(run_, session.next_step, state_))};
    start_ = {.from = HeldState(session), .by_switch = with_changes(std::move(*why), session.next_step)};
    return std::nullopt;
  }

  // The session's checkpoint could not be used: takes an older one. Rethrows if there is none or no other will do.
  void pass_over_checkpoint(const DamagedCheckpoint& error) {
    if (!start_.rollback && start_.checkpoint()->is_named) throw;
    if (communicator_.rank() == 0) log_warn("skipping a checkpoint: {}", error.what());
    passed_over_.push_back(start_.checkpoint()->folder);
    const auto found = start_.rollback ? find_rollback_point(run_, *state_.rollback_point, communicator_, passed_over_)
                                       : find_resume_point(run_, communicator_, passed_over_);
    if (!found) throw;  // somebody has removed the others
    start_.from = *found;
    state_ = state_at_start(state_);
  }

 private:
  // The state of the run where the session starts. `before`: of the session that it follows.
  RunState state_at_start(const RunState& before) const {
    RunState state = start_.checkpoint() != nullptr ? run_state_of(run_, *start_.checkpoint()) : RunState(run_);
    state.base = hooks_.base;
    if (!start_.rollback) return state;
    state.rollbacks = start_.rollback->count;
    state.proven_step = before.proven_step;
    if (start_.rollback->changes_precision) {
      state.adaptive->go_on_as(*before.adaptive, start_.steps_done());
    } else {
      // The checkpoint may have been saved within the row that caused the rollback.
      state.spikes_in_a_row = state.faults_in_a_row = state.skips_in_a_row = 0;
    }
    return state;
  }

  // Adds the settings that differ between this phase and the phase after `steps` steps.
  PrecisionSwitch with_changes(PrecisionSwitch why, int64_t steps) const {
    const int next = phase_of(run_, steps, state_);
    const std::vector<std::string> changes = training_differences(in_phase(run_, phase_), in_phase(run_, next));
    why.changes.insert(why.changes.end(), changes.begin(), changes.end());
    return why;
  }

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

}  // namespace

Ending train_run(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
                 Communicator& communicator) {
  Sessions sessions(run, checkpoint, hooks, communicator);
  while (true) {
    try {
      Session session(sessions.begin_phase(), communicator, sessions.parts());
      std::optional<Trainer> trainer;
      try {
        sessions.set_state(session);
        trainer.emplace(session, sessions.state(), sessions.observers(session), hooks.stop);
        const std::optional<PrecisionSwitch> why = trainer->run(sessions.end());
        if (const std::optional<Ending> ending = sessions.end_session(*trainer, why)) return *ending;
      } catch (const DamagedCheckpoint&) {  // on all ranks, before anything was trained
        throw;
      } catch (const std::exception& error) {
        hooks.on_error(error);
        throw;
      }
    } catch (const DamagedCheckpoint& error) {
      sessions.pass_over_checkpoint(error);
    }
  }
}

}  // namespace mantissa
