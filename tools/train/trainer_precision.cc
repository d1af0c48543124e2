// What a trainer does about its precision on the way: layers that overflow, and signals that move it along a ladder.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

#include "core/base/log.h"
#include "tools/train/step_memory.h"
#include "tools/train/trainer.h"

namespace mantissa {

PrecisionSwitch& Trainer::plan_switch(const std::string& cause) {
  if (!switch_) switch_.emplace();
  // A step under way may have asked for one as well.
  if (switch_->cause.find(cause) == std::string::npos) switch_->cause += (switch_->cause.empty() ? "" : ", ") + cause;
  return *switch_;
}

void Trainer::watch_returns(int64_t step) {
  if (!fallback_.is_due(step)) return;
  take(step_.finish());  // a step under way may still overflow
  for (const std::string& layer : fallback_.settle(step)) {
    plan_switch("precision.fallback.clean_steps")
        .changes.push_back(layer == PrecisionFallback::kWholeModel
                               ? std::string("what was fp16 computes in fp16 again")
                               : fmt::format("layer '{}' goes back by a level", layer));
  }
}

void Trainer::watch_overflows(const StepReport& step) {
  if (step.applied) return;
  const bool at_floor = step.event == ScalerEvent::kAtFloorFault;
  const FloorPolicy policy = session_.scaler.config().floor_policy;
  for (const std::string& layer : step.overflowed_layers) {
    const int room = lift_room(session_.runtime.policy.at(layer), op_of(layer));
    const bool lifts = at_floor && policy == FloorPolicy::kLift ? fallback_.lift_now(step.step, layer, room)
                                                                : fallback_.overflowed(step.step, layer, room);
    if (!lifts) continue;
    lift(layer, fmt::format("overflow of layer '{}' in step {}", layer, step.step + 1));
  }
  if (!at_floor || policy != FloorPolicy::kBf16 || !session_.config.precision.uses_fp16()) return;
  fallback_.leave_fp16(step.step);
  plan_switch(fmt::format("scaler.floor = bf16 after step {}", step.step + 1))
      .changes.emplace_back("what was fp16 computes in bf16");
}

Op Trainer::op_of(const std::string& layer) const {
  const std::vector<PlacedOp> ops = ops_of(session_.config);
  const bool attends = std::any_of(ops.begin(), ops.end(),
                                   [&](const PlacedOp& op) { return op.layer == layer && op.op == Op::kAttention; });
  return attends ? Op::kAttention : Op::kLinear;
}

void Trainer::lift(const std::string& layer, const std::string& cause) {
  const Op op = op_of(layer);
  const Precision before = session_.runtime.policy.at(layer);
  Precision after = before;
  mantissa::lift(after, 1);
  plan_switch(cause).changes.push_back(
      fmt::format("layer '{}': {} -> {}", layer, describe_lift(before, op), describe_lift(after, op)));
}

void Trainer::watch_signals(const StepReport& step) {
  if (!adaptive_) return;
  const int64_t steps = step.step + 1;
  if (step.curvature) adaptive_->curved(steps, *step.curvature);
  if (step.applied) return adaptive_->applied(steps, step.loss, step.grad_norm);
  // A dynamic loss scale on its way down says nothing about the precision.
  if (step.verdict.loss_finite && !step.hunted && !is_fault(step.event)) return;
  adaptive_->skipped(steps, step.loss, step.verdict.gradients_finite ? step.grad_norm : std::nan(""));
  change_level(steps);  // nothing is under way behind a step that was skipped: there is no need to wait
}

void Trainer::watch_underflow(const ProbedStep& step) {
  if (!adaptive_ || adaptive_->options().underflow_share == 0.0) return;
  // Rank 0 knows what all ranks have found.
  const double share = underflow_share(step);
  adaptive_->underflowed(step.step + 1, all_gather_records(session_.communicator, share)[0]);
}

void Trainer::watch_evaluation(std::optional<double> loss) {
  const int64_t step = session_.next_step, interval = session_.config.train.eval_interval;
  const bool is_due = step > 0 && interval > 0 && step % interval == 0;  // the last one of a training need not be
  if (adaptive_ && loss && is_due) adaptive_->evaluated(step, *loss);
}

void Trainer::watch_level(int64_t step) {
  if (!adaptive_ || !adaptive_->is_due(step)) return;
  take(step_.finish());  // a step under way counts
  change_level(step);
}

void Trainer::change_level(int64_t step) {
  const auto change = adaptive_->decide(step);
  if (!change) return;
  std::string cause =
      fmt::format("precision.adaptive goes {} from level {} to {}: ", change->to < change->from ? "up" : "down",
                  change->from, change->to);
  nlohmann::json signals = nlohmann::json::array();
  for (const BadSignal& bad : change->causes) {
    cause += (signals.empty() ? "" : ", ") + describe(bad);
    signals.push_back(to_json(bad));
  }
  if (signals.empty()) cause += fmt::format("{} steps without an uneasy signal", change->steady_steps);
  plan_switch(cause).figures = {
      {"from_level", change->from}, {"to_level", change->to}, {"signals", std::move(signals)}};
}

}  // namespace mantissa
