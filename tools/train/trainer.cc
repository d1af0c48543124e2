#include "tools/train/trainer.h"

#include <algorithm>
#include <utility>

#include "core/profile/range.h"

namespace mantissa {

Trainer::Trainer(Session& session, RunState& state, TrainObservers observers, RunProbe* probe)
    : session_(session),
      state_(state),
      observers_(std::move(observers)),
      step_(session, probe),
      evaluation_(session.config, session.runtime, *session.batches, session.communicator) {}

int64_t Trainer::last_step(const Config& config) {
  return config.train.stop_at_step > 0 ? std::min(config.train.stop_at_step, config.train.steps) : config.train.steps;
}

std::optional<PrecisionSwitch> Trainer::run(int64_t end) {
  const int64_t last = last_step(session_.config);
  if (session_.next_step < end) step_.calibrate();
  if (session_.next_step < end && session_.next_step == 0) evaluate();
  while (step_.next_to_start() < end && !switch_) {
    for (const auto& observer : observers_) observer->before_step(*this, step_.next_to_start());
    if (switch_) break;
    take(step_.run());
    const int64_t started = step_.next_to_start();
    if (started >= last) continue;  // finish() does what is due then
    const bool evaluates = is_due(session_.config.train.eval_interval, started);
    const auto pauses = [started](const auto& observer) { return observer->pauses_after(started); };
    if (!evaluates && std::none_of(observers_.begin(), observers_.end(), pauses)) continue;
    settle();
    if (evaluates) evaluate();
    for (const auto& observer : observers_) {
      if (pauses(observer)) observer->at_pause(*this);
    }
  }
  settle();
  return std::exchange(switch_, std::nullopt);
}

void Trainer::finish() {
  evaluate();
  for (const auto& observer : observers_) observer->at_end(*this, Ending::kDone);
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

void Trainer::evaluate() {
  if (!evaluation_.enabled()) return;
  double loss = 0.0;
  {
    const Range range(RangeKind::kPhase, "evaluate");
    loss = evaluation_.run();
  }
  for (const auto& observer : observers_) observer->after_validation(*this, loss);
}

void Trainer::take(const std::vector<StepReport>& steps) {
  const std::optional<ProbedStep> probed = step_.take_probed();
  for (const StepReport& step : steps) {
    const ProbedStep* const findings = probed && probed->step == step.step ? &*probed : nullptr;
    for (const auto& observer : observers_) observer->after_step(*this, step, findings);
    count_faults(step);
  }
}

void Trainer::count_faults(const StepReport& step) {
  // Without a scale to lower, non-finite gradients are as incurable as a non-finite loss. Another precision may cure
  // them.
  state_.faults_in_a_row = is_fault(step.event) && !switch_ ? state_.faults_in_a_row + 1 : 0;
  if (state_.faults_in_a_row < session_.config.faults.max_consecutive) return;
  const int faults = std::exchange(state_.faults_in_a_row, 0);
  for (const auto& observer : observers_) observer->at_end(*this, Ending::kFaults);
  leave();
  throw FaultError(fmt::format("stopped after {} faults in a row, the last in step {}: {}; {}", faults, step.step + 1,
                               step.skip_reason(session_.runtime.parameters), step.advice(session_.scaler.config())));
}

}  // namespace mantissa
