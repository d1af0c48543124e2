#include "tools/train/precision_control.h"

#include <algorithm>
#include <cmath>

#include "amp/autocast_policy.h"
#include "amp/precision_fallback.h"
#include "core/base/wrapped_text.h"
#include "tools/probe/probe_log.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {

Config with_lifts(Config phase, const PrecisionFallback& fallback) {
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

void PrecisionControl::after_step(Trainer& trainer, const StepReport& step) {
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
  if (change->to < change->from && trainer.state().adaptive->options().rollback) {
    trainer.request_rollback({.cause = asked.cause,
                              .from_step = trainer.session().next_step,
                              .count = trainer.state().rollbacks,
                              .changes_precision = true});
  }
}

}  // namespace mantissa
