#include "tools/train/trainer.h"

#include <algorithm>
#include <utility>

#include "comm/sharded_state.h"
#include "core/base/log.h"
#include "tools/config/precision_phases.h"
#include "tools/model/runtime/open_model.h"
#include "tools/train/initial_weights.h"
#include "tools/train/session_observers.h"

namespace mantissa {
namespace {

std::vector<StepExaminer*> examiners_of(const TrainObservers& observers) {
  std::vector<StepExaminer*> examiners;
  for (const auto& observer : observers) {
    if (StepExaminer* const examiner = observer->examiner()) examiners.push_back(examiner);
  }
  return examiners;
}

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

Trainer::Trainer(Session& session, RunState& state, TrainObservers observers, StopRequest* stop)
    : session_(session),
      state_(state),
      observers_(std::move(observers)),
      step_(session, examiners_of(observers_), stop) {}

std::optional<PrecisionSwitch> Trainer::run(int64_t end) try {
  const int64_t last = session_.config.train.last_step();
  if (session_.next_step < end) step_.calibrate();
  while (step_.next_to_start() < end && !switch_ && !stopped_by_) {
    for (const auto& observer : observers_) observer->before_step(*this, step_.next_to_start());
    if (switch_ || stopped_by_) break;
    take(step_.run());
    if (rollback_) break;  // nothing is under way after a step that was not applied
    if (step_.next_to_start() < last) pause(step_.next_to_start());  // finish() does what is due after the last step
  }
  settle();
  if (rollback_ && rollback_->changes_precision) return std::exchange(switch_, std::nullopt);  // the state is given up
  require_finite_state();
  step_.require_intact_state();  // it is saved now, or handed to another session
  if (stopped_by_ && stopped_by_->stop_request == StopRequest::kBadData) {
    fail<DataError>(first_text(session_.communicator, step_.data_error()).text);
  }
  return std::exchange(switch_, std::nullopt);
} catch (const CorruptionError&) {
  for (const auto& observer : observers_) observer->at_end(*this, Ending::kCorrupt);
  leave();
  throw;
}

void Trainer::pause(int64_t steps) {
  const auto pauses = [steps](const auto& observer) { return observer->pauses_after(steps); };
  if (std::ranges::none_of(observers_, pauses)) return;
  settle();
  require_finite_state();
  bool is_examined = false;
  for (const auto& observer : observers_) {
    if (!pauses(observer)) continue;
    if (observer->keeps_state() && !std::exchange(is_examined, true)) step_.require_intact_state();
    observer->at_pause(*this);
  }
}

void Trainer::finish(Ending ending) {
  for (const auto& observer : observers_) observer->at_end(*this, ending);
  if (ending == Ending::kDone) session_.faults.finish();
  leave();
}

void Trainer::end_failed() {
  step_.require_intact_state();
  for (const auto& observer : observers_) observer->at_end(*this, Ending::kFailed);
  leave();
}

void Trainer::settle() { take(step_.finish()); }

PrecisionSwitch& Trainer::request_switch(const std::string& cause) {
  if (!switch_) switch_.emplace();
  // A step under way may have asked for it as well.
  if (switch_->cause.find(cause) == std::string::npos) switch_->cause += (switch_->cause.empty() ? "" : ", ") + cause;
  return *switch_;
}

void Trainer::take(const std::vector<StepReport>& steps) {
  for (const StepReport& step : steps) {
    if (step.verdict.stop_request != StopRequest::kNone && !stopped_by_) stopped_by_ = step.verdict;
    for (const auto& observer : observers_) observer->after_step(*this, step);
  }
}

void Trainer::require_finite_state() {
  const ShardedState& state = session_.sharded;
  if (!has_state_faults(state)) return;
  fail<FaultError>(fmt::format("stopped after step {}: {}; {}", session_.next_step,
                               state_fault_reason(describe_state_faults(state)), kStateFaultAdvice));
}

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
