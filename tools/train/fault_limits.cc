#include "tools/train/fault_limits.h"

#include "core/base/wrapped_text.h"

namespace mantissa {

void FaultLimits::count_skips(Trainer& trainer, const StepReport& step) {
  RunState& state = trainer.state();
  const FaultConfig& limits = session_.config.faults;
  const ScalerConfig& scaler = session_.scaler.config();
  // Without a scale to lower, non-finite gradients are as incurable as a non-finite loss. Another precision may cure
  // them, but not the state.
  state.faults_in_a_row = is_fault(step.event) && !trainer.is_switching() ? state.faults_in_a_row + 1 : 0;
  // Faults between overflows make no progress either.
  state.skips_in_a_row = !step.applied && !trainer.is_switching() ? state.skips_in_a_row + 1 : 0;
  const bool ends = ends_run(step.event, scaler) && (!trainer.is_switching() || !step.verdict.state_finite);
  const bool has_faults = state.faults_in_a_row >= limits.max_consecutive;
  if (!ends && !has_faults && state.skips_in_a_row < limits.max_skipped) return;
  std::string where = fmt::format("in step {}", step.step + 1);
  if (!ends) {
    const std::string count =
        has_faults ? counted(state.faults_in_a_row, "fault") : counted(state.skips_in_a_row, "skipped step");
    where = fmt::format("after {} in a row, the last {}", count, where);
  }
  state.faults_in_a_row = state.skips_in_a_row = 0;
  trainer.fail<FaultError>(
      fmt::format("stopped {}: {}; {}", where, step.skip_reason(session_.runtime.parameters), step.advice(scaler)));
}

void FaultLimits::count_spikes(Trainer& trainer, const StepReport& step) {
  const StopRulesConfig& rules = session_.config.stop_rules;
  if (rules.action == SpikeAction::kNone) return;
  RunState& state = trainer.state();
  if (step.spike || !step.verdict.loss_finite) {
    ++state.spikes_in_a_row;
  } else if (step.applied) {  // an overflow says nothing
    state.spikes_in_a_row = 0;
  }
  const bool acts = rules.action == SpikeAction::kRollback || rules.action == SpikeAction::kStop;
  // A signal does not change what a run decides: it is heard again in the next step.
  const bool has_bad_data = trainer.stopped_by() && trainer.stopped_by()->stop_request == StopRequest::kBadData;
  if (!acts || has_bad_data || state.spikes_in_a_row < rules.consecutive) return;
  const std::string cause =
      fmt::format("{} in a row, the last in step {}: {}", counted(state.spikes_in_a_row, "spike"), step.step + 1,
                  step.skip_reason(session_.runtime.parameters));
  state.spikes_in_a_row = state.faults_in_a_row = state.skips_in_a_row = 0;
  const bool rolls_back = rules.action == SpikeAction::kRollback;
  if (rolls_back && state.rollback_point && state.rollbacks < rules.max_rollbacks) {
    trainer.request_rollback({.cause = cause,
                         .from_step = session_.next_step,
                         .next_batch = session_.next_step + session_.skipped_batches,
                         .count = state.rollbacks + 1});
    return;
  }
  const std::string why = !rolls_back             ? ""
                          : state.rollback_point ? " and " + counted(state.rollbacks, "rollback")
                                                  : ", without a checkpoint to roll back to (checkpoint.interval)";
  trainer.fail<FaultError>(fmt::format("stopped after {}{}; the weights are those before; {}", cause, why,
                               step.advice(session_.scaler.config())));
}

}  // namespace mantissa
