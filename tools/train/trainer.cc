#include "tools/train/trainer.h"

#include <algorithm>
#include <utility>

#include "comm/sharded_state.h"
#include "core/base/log.h"

namespace mantissa {
namespace {

std::vector<StepExaminer*> examiners_of(const TrainObservers& observers) {
  std::vector<StepExaminer*> examiners;
  for (const auto& observer : observers) {
    if (StepExaminer* const examiner = observer->examiner()) examiners.push_back(examiner);
  }
  return examiners;
}

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

}  // namespace mantissa
