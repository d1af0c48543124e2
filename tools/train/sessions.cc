#include "tools/train/sessions.h"

#include <algorithm>
#include <utility>

#include "core/base/log.h"
#include "tools/config/precision_phases.h"
#include "tools/model/runtime/open_model.h"
#include "tools/train/evaluation.h"
#include "tools/train/fault_limits.h"
#include "tools/train/initial_weights.h"
#include "tools/train/precision_control.h"

namespace mantissa {

Sessions::Sessions(const Config& run, const std::optional<ResumePoint>& checkpoint, const TrainingHooks& hooks,
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
  if (checkpoint) {
    start_.from = *checkpoint;
  } else {
    start_.from = first_weights_;
  }
  state_ = state_at_start(state_);
}

const Config& Sessions::config() {
  phase_ = phase_of(run_, start_.steps_done(), state_);
  config_ = with_lifts(in_phase(run_, phase_), state_.fallback);
  return config_;
}

SessionParts Sessions::parts() const {
  return {.batches = [this](const Config&, Objective) { return batches_; }, .struck = struck_};
}

int64_t Sessions::end() const { return std::min(phase_end(run_, phase_), run_.train.last_step()); }

void Sessions::set_state(Session& session) const {
  load_frozen_weights(session, frozen_);
  if (const auto* const held = std::get_if<HeldState>(&start_.from)) held->hand_over(session);
  if (start_.checkpoint() != nullptr) resume(session, run_, *start_.checkpoint());
  const auto* const weights = std::get_if<std::string>(&start_.from);
  if (weights != nullptr && !weights->empty()) load_initial_weights(session, *weights);
  if (start_.rollback && !start_.rollback->changes_precision) {
    session.skipped_batches = start_.rollback->next_batch - session.next_step;
  }
}

TrainObservers Sessions::observers(Session& session) {
  const int64_t evaluated_at = start_.checkpoint() != nullptr ? start_.steps_done() : -1;
  TrainObservers observers = {std::make_shared<Validation>(session),
                              std::make_shared<PrecisionControl>(evaluated_at, phase_names(run_))};
  hooks_.begin(session, state_, start_, observers);
  observers.push_back(std::make_shared<FaultLimits>(session));  // last: it may end the run
  return observers;
}

std::optional<Ending> Sessions::end_session(Trainer& trainer, std::optional<PrecisionSwitch> why) {
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

void Sessions::pass_over_checkpoint(const DamagedCheckpoint& error) {
  if (!start_.rollback && start_.checkpoint()->is_named) throw;
  if (communicator_.rank() == 0) log_warn("skipping a checkpoint: {}", error.what());
  passed_over_.push_back(start_.checkpoint()->folder);
  const auto found = start_.rollback
                         ? find_rollback_point(run_, *state_.rollback_point, communicator_, passed_over_)
                         : find_resume_point(run_, communicator_, passed_over_);
  if (!found) throw;  // somebody has removed the others
  start_.from = *found;
  state_ = state_at_start(state_);
}

RunState Sessions::state_at_start(const RunState& before) const {
  RunState state = start_.checkpoint() != nullptr ? run_state_of(run_, *start_.checkpoint()) : RunState(run_);
  state.base = hooks_.base;
  if (!start_.rollback) return state;
  state.rollbacks = start_.rollback->count;
  state.proven_step = before.proven_step;
  if (start_.rollback->changes_precision) {
    state.adaptive->go_on_as(*before.adaptive, start_.steps_done());
  } else {
    // The checkpoint may have been saved within the row that the rollback leaves behind.
    state.spikes_in_a_row = state.faults_in_a_row = state.skips_in_a_row = 0;
  }
  return state;
}

PrecisionSwitch Sessions::with_changes(PrecisionSwitch why, int64_t steps) const {
  const int next = phase_of(run_, steps, state_);
  const std::vector<std::string> changes = training_differences(in_phase(run_, phase_), in_phase(run_, next));
  why.changes.insert(why.changes.end(), changes.begin(), changes.end());
  return why;
}

}  // namespace mantissa
