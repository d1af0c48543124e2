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
namespace {

struct LossSum {
  double nats = 0.0;
  int64_t tokens = 0;   // non-ignored
  bool is_bad = false;  // samples could not be read
};

}  // namespace

Evaluation::Evaluation(const Config& config, ModelRuntime& runtime, const Batches& batches, Communicator& communicator)
    : config_(config), runtime_(runtime), batches_(batches), communicator_(communicator) {
  const TrainConfig& train = config.train;
  if (train.eval_interval == 0) return;
  sequences_ = std::min(train.eval_batches * train.global_batch, batches.validation_windows());
  const int64_t count = train.micro_batch * config.model.context;
  tokens_ = runtime.backend->make_tensor(DType::kI32, {count}, "validation tokens");
  targets_ = runtime.backend->make_tensor(DType::kI32, {count}, "validation targets");
  if (config.data.packs_documents()) {
    starts_ = runtime.backend->make_tensor(DType::kI32, {count}, "starts of validation documents");
  }
}

double Evaluation::run() {
  const int64_t context = config_.model.context, block = config_.train.micro_batch;
  const int64_t stride = block * communicator_.size();
  LossSum mine;
  std::string error;
  for (int64_t first = block * communicator_.rank(); first < sequences_; first += stride) {
    // The last micro-batch is padded with ignored targets, so that the device need not prepare another shape.
    std::vector<int32_t> tokens(static_cast<size_t>(block * context)), targets(tokens.size(), kIgnoredTarget);
    std::vector<int32_t> starts(starts_.defined() ? tokens.size() : 0);
    const auto count = static_cast<size_t>(std::min(block, sequences_ - first) * context);
    try {
      batches_.validation(static_cast<uint64_t>(first),
                          {std::span(tokens).first(count), std::span(targets).first(count),
                           std::span(starts).first(starts.empty() ? 0 : count)});
    } catch (const DataError& thrown) {
      mine.is_bad = true;
      error = thrown.what();
      break;
    }
    runtime_.backend->upload(tokens.data(), tokens_, *runtime_.stream);
    runtime_.backend->upload(targets.data(), targets_, *runtime_.stream);
    if (starts_.defined()) runtime_.backend->upload(starts.data(), starts_, *runtime_.stream);
    Tape tape = runtime_.make_tape({.mode = TapeMode::kEvaluation, .document_starts = starts_});
    const LossOutput output = runtime_.model->loss(tape, tokens_, targets_, context);
    mine.nats += runtime_.backend->read_number(output.sum.value, *runtime_.stream);
    mine.tokens += count_targets(targets);
  }
  LossSum total;
  for (const LossSum& loss : all_gather_records(communicator_, mine)) {
    total.nats += loss.nats;
    total.tokens += loss.tokens;
    total.is_bad |= loss.is_bad;
  }
  if (total.is_bad) throw DataError(first_text(communicator_, error).text);
  if (total.tokens == 0 && sequences_ > 0) throw DataError("validation data: no target counts, all are masked");
  return total.nats / static_cast<double>(total.tokens);
}

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

namespace {

// A layer that can be lifted is a linear layer or an attention.
Op op_of(const Config& config, const std::string& layer) {
  const std::vector<PlacedOp> ops = ops_of(config);
  const bool attends = std::any_of(ops.begin(), ops.end(),
                                   [&](const PlacedOp& op) { return op.layer == layer && op.op == Op::kAttention; });
  return attends ? Op::kAttention : Op::kLinear;
}

}  // namespace

void PrecisionControl::before_step(Trainer& trainer, int64_t step) {
  PrecisionFallback& fallback = trainer.state().fallback;
  if (fallback.is_due(step)) {
    trainer.settle();  // a step under way may still overflow
    for (const std::string& layer : fallback.settle(step)) {
      trainer.request_switch("precision.fallback.clean_steps")
          .changes.push_back(layer == PrecisionFallback::kWholeModel
                                 ? std::string("what was fp16 computes in fp16 again")
                                 : fmt::format("layer '{}' takes the next lower precision again", layer));
    }
  }
  if (const auto& adaptive = trainer.state().adaptive; adaptive && adaptive->is_due(step)) {
    trainer.settle();  // a step under way counts
    change_level(trainer, step);
  }
}

void PrecisionControl::after_step(Trainer& trainer, const StepReport& step, const ProbedStep* probed) {
  if (!step.applied) lift_overflowed(trainer, step);
  auto& adaptive = trainer.state().adaptive;
  if (!adaptive) return;
  const int64_t steps = step.step + 1;
  if (probed != nullptr && adaptive->options().underflow_share > 0.0) {
    // Rank 0 knows the findings of all ranks.
    const double share = underflow_share(*probed);
    adaptive->underflowed(steps, all_gather_records(trainer.session().communicator, share)[0]);
  }
  if (step.curvature) adaptive->curved(steps, *step.curvature);
  if (step.gradient_noise) adaptive->noisy(steps, *step.gradient_noise);
  if (step.applied) return adaptive->applied(steps, step.loss, step.grad_norm);
  // A dynamic loss scale on its way down says nothing about the precision.
  if (step.verdict.loss_finite && !step.hunted && !is_fault(step.event)) return;
  adaptive->skipped(steps, step.loss, step.verdict.gradients_finite ? step.grad_norm : std::nan(""));
  change_level(trainer, steps);  // at once: no step is under way after one that was skipped
}

void PrecisionControl::after_validation(Trainer& trainer, double loss) {
  // Scheduled evaluations only, so that interrupting a run does not change its decisions.
  const int64_t steps = trainer.session().next_step;
  const bool is_scheduled = steps > 0 && is_due(trainer.session().config.train.eval_interval, steps);
  if (auto& adaptive = trainer.state().adaptive; adaptive && is_scheduled && steps != evaluated_at_) {
    adaptive->evaluated(steps, loss);
  }
}

void PrecisionControl::lift_overflowed(Trainer& trainer, const StepReport& step) {
  Session& session = trainer.session();
  PrecisionFallback& fallback = trainer.state().fallback;
  const bool at_floor = step.event == ScalerEvent::kAtFloorFault;
  const FloorPolicy policy = session.scaler.config().floor_policy;
  for (const std::string& layer : step.overflowed_layers) {
    const int room = lift_room(session.runtime.policy.at(layer), op_of(session.config, layer));
    const bool lifts = at_floor && policy == FloorPolicy::kLift ? fallback.lift_now(step.step, layer, room)
                                                                : fallback.overflowed(step.step, layer, room);
    if (lifts) lift(trainer, layer, fmt::format("overflow of layer '{}' in step {}", layer, step.step + 1));
  }
  if (!at_floor || policy != FloorPolicy::kBf16 || !session.config.precision.uses_fp16()) return;
  fallback.leave_fp16(step.step);
  trainer.request_switch(fmt::format("scaler.floor = bf16 after step {}", step.step + 1))
      .changes.emplace_back("what was fp16 computes in bf16");
}

void PrecisionControl::lift(Trainer& trainer, const std::string& layer, const std::string& cause) {
  const Session& session = trainer.session();
  const Op op = op_of(session.config, layer);
  const Precision before = session.runtime.policy.at(layer);
  Precision after = before;
  for (const PrecisionRule& rule : lift_rules(layer, op, before, 1)) apply(rule, after);
  trainer.request_switch(cause).changes.push_back(
      fmt::format("layer '{}': {} -> {}", layer, describe_lift(before, op), describe_lift(after, op)));
}

void PrecisionControl::change_level(Trainer& trainer, int64_t steps) {
  const auto change = trainer.state().adaptive->decide(steps);
  if (!change) return;
  const auto level = [&](int number) { return levels_.at(static_cast<size_t>(number)); };
  std::string cause =
      fmt::format("precision.adaptive {} the precision from {} to {} after step {}: ",
                  change->to < change->from ? "raises" : "lowers", level(change->from), level(change->to), steps);
  for (const BadSignal& bad : change->causes) cause += (&bad == &change->causes[0] ? "" : ", ") + describe(bad);
  if (change->causes.empty()) cause += counted(change->steady_steps, "step") + " without an uneasy signal";
  PrecisionSwitch& asked = trainer.request_switch(cause);
  asked.from_level = change->from;
  asked.to_level = change->to;
  asked.signals = change->causes;
  if (change->to < change->from && trainer.state().adaptive->options().rollback) trainer.request_rollback();
}

}  // namespace mantissa
