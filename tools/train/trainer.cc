#include "tools/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "amp/precision_fallback.h"
#include "comm/state_faults.h"
#include "core/base/wrapped_text.h"
#include "core/profile/range.h"
#include "tools/probe/parameter_probes.h"
#include "tools/train/dry_run.h"

namespace mantissa {

Trainer::Trainer(Session& session, RunState& state, TrainObservers observers, RunProbe* probe, StopRequest* stop)
    : session_(session),
      state_(state),
      observers_(std::move(observers)),
      step_(session, probe, stop),
      evaluation_(session.config, session.runtime, *session.batches, session.communicator) {}

std::optional<PrecisionSwitch> Trainer::run(int64_t end) {
  try {
    run_steps(end);
  } catch (const CorruptionError&) {
    for (const auto& observer : observers_) observer->at_end(*this, Ending::kCorrupt);
    leave();
    throw;
  }
  return std::exchange(switch_, std::nullopt);
}

void Trainer::run_steps(int64_t end) {
  const int64_t last = session_.config.train.last_step();
  if (session_.next_step < end) step_.calibrate();
  if (session_.next_step < end && session_.next_step == 0) evaluate();
  while (step_.next_to_start() < end && !switch_ && !stopped_by_) {
    for (const auto& observer : observers_) observer->before_step(*this, step_.next_to_start());
    if (switch_ || stopped_by_) break;
    take(step_.run());
    if (rollback_) break;  // nothing is under way behind a step that was not applied
    const int64_t started = step_.next_to_start();
    if (started >= last) continue;  // finish() does what is due then
    const bool evaluates = is_due(session_.config.train.eval_interval, started);
    const auto pauses = [started](const auto& observer) { return observer->pauses_after(started); };
    if (!evaluates && std::none_of(observers_.begin(), observers_.end(), pauses)) continue;
    settle();
    require_finite_state();
    if (evaluates) evaluate();
    if (std::any_of(observers_.begin(), observers_.end(), pauses)) step_.require_intact_state();
    for (const auto& observer : observers_) {
      if (pauses(observer)) observer->at_pause(*this);
    }
  }
  settle();
  if (rollback_ && rollback_->by_switch) return;  // whatever has become of this state
  require_finite_state();
  step_.require_intact_state();  // it is saved now, or handed to another session
  if (stopped_by_ && stopped_by_->stop_request == StopRequest::kBadData) {
    fail<DataError>(first_text(session_.communicator, step_.data_error()).text);
  }
}

void Trainer::finish(Ending ending) {
  if (ending == Ending::kDone) evaluate();
  for (const auto& observer : observers_) observer->at_end(*this, ending);
  if (ending == Ending::kDone) session_.faults.finish();
  leave();
}

void Trainer::leave() {
  for (const auto& observer : observers_) observer->before_leave(*this);
}

void Trainer::settle() { take(step_.finish()); }

PrecisionSwitch& Trainer::request_switch(const std::string& cause) {
  if (!switch_) switch_.emplace();
  // A step under way may have asked for it as well.
  if (switch_->cause.find(cause) == std::string::npos) switch_->cause += (switch_->cause.empty() ? "" : ", ") + cause;
  return *switch_;
}

void Trainer::request_rollback() {
  rollback_ = Rollback{
      .cause = switch_->cause, .from_step = session_.next_step, .count = state_.rollbacks, .by_switch = switch_};
}

void Trainer::evaluate() {
  if (!evaluation_.enabled()) return;
  double loss = 0.0;
  try {
    const Range range(RangeKind::kPhase, "evaluate");
    loss = evaluation_.run();
  } catch (const DataError& error) {
    fail<DataError>(error.what());
  }
  for (const auto& observer : observers_) observer->after_validation(*this, loss);
}

void Trainer::take(const std::vector<StepReport>& steps) {
  const std::optional<ProbedStep> probed = step_.take_probed();
  for (const StepReport& step : steps) {
    const ProbedStep* const findings = probed && probed->step == step.step ? &*probed : nullptr;
    for (const auto& observer : observers_) observer->after_step(*this, step, findings);
    if (step.verdict.stop_request != StopRequest::kNone && !stopped_by_) stopped_by_ = step.verdict;
    count_spikes(step);
    if (!rollback_) count_skips(step);
  }
}

void Trainer::require_finite_state() {
  const ShardedState& state = session_.sharded;
  if (!has_state_faults(state)) return;
  fail<FaultError>(fmt::format("stopped after step {}: {}; {}", session_.next_step,
                               state_fault_reason(describe_state_faults(state)), kStateFaultAdvice));
}

void Trainer::count_skips(const StepReport& step) {
  const FaultConfig& limits = session_.config.faults;
  const ScalerConfig& scaler = session_.scaler.config();
  // Without a scale to lower, non-finite gradients are as incurable as a non-finite loss. Another precision may cure
  // them, but not the state.
  state_.faults_in_a_row = is_fault(step.event) && !switch_ ? state_.faults_in_a_row + 1 : 0;
  // Faults between overflows make no progress either.
  state_.skips_in_a_row = !step.applied && !switch_ ? state_.skips_in_a_row + 1 : 0;
  const bool ends = ends_run(step.event, scaler) && (!switch_ || !step.verdict.state_finite);
  const bool has_faults = state_.faults_in_a_row >= limits.max_consecutive;
  if (!ends && !has_faults && state_.skips_in_a_row < limits.max_skipped) return;
  std::string where = fmt::format("in step {}", step.step + 1);
  if (!ends) {
    const std::string count =
        has_faults ? counted(state_.faults_in_a_row, "fault") : counted(state_.skips_in_a_row, "skipped step");
    where = fmt::format("after {} in a row, the last {}", count, where);
  }
  state_.faults_in_a_row = state_.skips_in_a_row = 0;
  fail<FaultError>(
      fmt::format("stopped {}: {}; {}", where, step.skip_reason(session_.runtime.parameters), step.advice(scaler)));
}

void Trainer::count_spikes(const StepReport& step) {
  const StopRulesConfig& rules = session_.config.stop_rules;
  if (rules.action == SpikeAction::kNone) return;
  if (step.spike || !step.verdict.loss_finite) {
    ++state_.spikes_in_a_row;
  } else if (step.applied) {  // an overflow says nothing
    state_.spikes_in_a_row = 0;
  }
  const bool acts = rules.action == SpikeAction::kRollback || rules.action == SpikeAction::kStop;
  // A signal does not change what a run decides: it is heard again in the next step.
  const bool has_bad_data = stopped_by_ && stopped_by_->stop_request == StopRequest::kBadData;
  if (!acts || has_bad_data || state_.spikes_in_a_row < rules.consecutive) return;
  const std::string cause =
      fmt::format("{} in a row, the last in step {}: {}", counted(state_.spikes_in_a_row, "spike"), step.step + 1,
                  step.skip_reason(session_.runtime.parameters));
  state_.spikes_in_a_row = state_.faults_in_a_row = state_.skips_in_a_row = 0;
  const bool rolls_back = rules.action == SpikeAction::kRollback;
  if (rolls_back && state_.rollback_point && state_.rollbacks < rules.max_rollbacks) {
    rollback_ = Rollback{.cause = cause,
                         .from_step = session_.next_step,
                         .next_batch = session_.next_step + session_.skipped_batches,
                         .count = state_.rollbacks + 1};
    return;
  }
  const std::string why = !rolls_back             ? ""
                          : state_.rollback_point ? " and " + counted(state_.rollbacks, "rollback")
                                                  : ", without a checkpoint to roll back to (checkpoint.interval)";
  fail<FaultError>(fmt::format("stopped after {}{}; the weights are those before; {}", cause, why,
                               step.advice(session_.scaler.config())));
}

template <typename Error>
void Trainer::fail(const std::string& message) {
  step_.require_intact_state();
  for (const auto& observer : observers_) observer->at_end(*this, Ending::kFailed);
  leave();
  throw Error(message);
}

}  // namespace mantissa
