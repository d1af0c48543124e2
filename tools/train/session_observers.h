// The observers that every training has.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "amp/adaptive_precision.h"
#include "amp/autocast_policy.h"
#include "core/base/wrapped_text.h"
#include "core/kernels/reduction/exact_sum.h"
#include "core/ops/cross_entropy.h"
#include "core/profile/range.h"
#include "tools/probe/probe_log.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/trainer.h"

namespace mantissa {

// The loss on validation text.
class Evaluation {
 public:
  // References must outlive the object.
  Evaluation(const Config& config, ModelRuntime& runtime, const Batches& batches, Communicator& communicator)
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

  // Whether there is validation text and train.eval_interval asks for it.
  bool enabled() const { return sequences_ > 0; }
  // Mean loss over the non-ignored tokens of the first sequences of the validation text, nats: the same set in every
  // call and for every number of ranks. DataError, alike on all ranks, if a rank cannot read its part. Collective.
  double run() {
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
      mine.nats.add(runtime_.backend->read_number(output.sum.value, *runtime_.stream));
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
    return total.nats.value() / static_cast<double>(total.tokens);
  }

 private:
  struct LossSum {
    ExactSum nats{};
    int64_t tokens = 0;   // non-ignored
    bool is_bad = false;  // samples could not be read
  };

  const Config& config_;
  ModelRuntime& runtime_;
  const Batches& batches_;
  Communicator& communicator_;
  int64_t sequences_ = 0;
  Tensor tokens_, targets_, starts_;  // (micro_batch * context) i32; starts: if the data packs documents
};

// Evaluates before the first step, at train.eval_interval, and at the end, and informs all observers. Comes first among
// them: their saves and decisions then include the loss.
class Validation final : public TrainObserver {
 public:
  // The session must outlive the object.
  explicit Validation(Session& session)
      : interval_(session.config.train.eval_interval),
        evaluation_(session.config, session.runtime, *session.batches, session.communicator) {}

  void before_step(Trainer& trainer, int64_t step) override {
    if (step == 0) run(trainer);
  }
  bool pauses_after(int64_t steps) const override { return is_due(interval_, steps); }
  void at_pause(Trainer& trainer) override { run(trainer); }
  bool keeps_state() const override { return false; }
  void at_end(Trainer& trainer, Ending ending) override {
    if (ending == Ending::kDone) run(trainer);
  }

 private:
  // DataError, alike on all ranks: ends the run.
  void run(Trainer& trainer) {
    if (!evaluation_.enabled()) return;
    double loss = 0.0;
    try {
      const Range range(RangeKind::kPhase, "evaluate");
      loss = evaluation_.run();
    } catch (const DataError& error) {
      trainer.fail<DataError>(error.what());
    }
    trainer.report_validation(loss);
  }

  const int64_t interval_;
  Evaluation evaluation_;
};

// The configuration of a phase, with the rules that precision.fallback has added so far.
inline Config with_lifts(Config phase, const PrecisionFallback& fallback) {
  if (fallback.leaves_fp16()) {
    phase.precision.leave_fp16();
    phase.resolve_scaler_mode();
  }
  const auto lifts = fallback.lifts();
  if (lifts.empty()) return phase;
  const AutocastPolicy policy(phase.precision_rules());
  for (const PlacedOp& placed : ops_of(phase)) {
    const auto lift = lifts.find(placed.layer);
    if (lift == lifts.end() || (placed.op != Op::kLinear && placed.op != Op::kAttention)) continue;
    for (PrecisionRule& rule : lift_rules(placed.layer, placed.op, policy.at(placed.layer), lift->second)) {
      phase.precision.rules.push_back(std::move(rule));
    }
  }
  return phase;
}

// A layer that can be lifted is a linear layer or an attention.
inline Op op_of(const Config& config, const std::string& layer) {
  const std::vector<PlacedOp> ops = ops_of(config);
  const bool attends = std::any_of(ops.begin(), ops.end(),
                                   [&](const PlacedOp& op) { return op.layer == layer && op.op == Op::kAttention; });
  return attends ? Op::kAttention : Op::kLinear;
}

// precision.fallback lifts layers that overflow, precision.adaptive moves along a ladder of levels.
class PrecisionControl final : public TrainObserver {
 public:
  // `evaluated_at`: steps done at the state's last evaluation before a checkpoint; -1: none. `levels`: the names of the
  // ladder's levels.
  PrecisionControl(int64_t evaluated_at, std::vector<std::string> levels)
      : evaluated_at_(evaluated_at), levels_(std::move(levels)) {}

  void before_step(Trainer& trainer, int64_t step) override {
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

  void after_step(Trainer& trainer, const StepReport& step) override {
    if (!step.applied) lift_overflowed(trainer, step);
    auto& adaptive = trainer.state().adaptive;
    if (!adaptive) return;
    const int64_t steps = step.step + 1;
    if (step.probed && adaptive->options().underflow_share > 0.0) {
      // Rank 0 knows the findings of all ranks.
      const double share = underflow_share(*step.probed);
      adaptive->underflowed(steps, all_gather_records(trainer.session().communicator, share)[0]);
    }
    if (step.curvature) adaptive->curved(steps, *step.curvature);
    if (step.gradient_noise) adaptive->noisy(steps, *step.gradient_noise);
    if (step.applied) return adaptive->applied(steps, step.loss, step.grad_norm);
    // A dynamic loss scale on its way down says nothing about the precision.
    if (step.verdict.loss_finite && !step.hunted && !is_fault(step.event)) return;
    adaptive->skipped(steps, step.loss, step.verdict.gradients_finite ? step.grad_norm : std::nan(""));
    change_level(trainer, steps);  // at once: no step is under way after a skipped step
  }

  void after_validation(Trainer& trainer, double loss) override {
    // Scheduled evaluations only, so that interrupting a run does not change its decisions.
    const int64_t steps = trainer.session().next_step;
    const bool is_scheduled = steps > 0 && is_due(trainer.session().config.train.eval_interval, steps);
    if (auto& adaptive = trainer.state().adaptive; adaptive && is_scheduled && steps != evaluated_at_) {
      adaptive->evaluated(steps, loss);
    }
  }

 private:
  void lift_overflowed(Trainer& trainer, const StepReport& step) {
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

  void lift(Trainer& trainer, const std::string& layer, const std::string& cause) {
    const Session& session = trainer.session();
    const Op op = op_of(session.config, layer);
    const Precision before = session.runtime.policy.at(layer);
    Precision after = before;
    for (const PrecisionRule& rule : lift_rules(layer, op, before, 1)) apply(rule, after);
    trainer.request_switch(cause).changes.push_back(
        fmt::format("layer '{}': {} -> {}", layer, describe_lift(before, op), describe_lift(after, op)));
  }

  void change_level(Trainer& trainer, int64_t steps) {
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
    if (change->to < change->from && trainer.state().adaptive->options().rollback) {
      trainer.request_rollback({.cause = asked.cause,
                                .from_step = trainer.session().next_step,
                                .count = trainer.state().rollbacks,
                                .changes_precision = true});
    }
  }

  const int64_t evaluated_at_;
  const std::vector<std::string> levels_;
};

// Ends a run, or returns it to a checkpoint, after too many bad steps in a row: FaultError after
// faults.max_consecutive faults, faults.max_skipped skipped steps or stop_rules.consecutive spikes. Counts are in
// RunState.
class FaultLimits final : public TrainObserver {
 public:
  // The session must outlive the object.
  explicit FaultLimits(const Session& session) : session_(session) {}

  void after_step(Trainer& trainer, const StepReport& step) override {
    count_spikes(trainer, step);
    if (!trainer.rollback()) count_skips(trainer, step);
  }

 private:
  void count_skips(Trainer& trainer, const StepReport& step) {
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

  void count_spikes(Trainer& trainer, const StepReport& step) {
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
    const std::string why = !rolls_back            ? ""
                            : state.rollback_point ? " and " + counted(state.rollbacks, "rollback")
                                                   : ", without a checkpoint to roll back to (checkpoint.interval)";
    trainer.fail<FaultError>(fmt::format("stopped after {}{}; the weights are those before; {}", cause, why,
                                         step.advice(session_.scaler.config())));
  }

  const Session& session_;
};

}  // namespace mantissa
