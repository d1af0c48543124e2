// The decision about an update, as functions that run on the device (constexpr: nvcc compiles them for both sides).
// They turn the ranks' findings in loss and gradients into AdamW's UpdateControl. The host plans a step and reads the
// decision later; the update never waits for the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/kernels/optimizer/records.h"
#include "core/kernels/reduction/records.h"

namespace mantissa {

// Uses comparisons only, which are false for NaN. A difference such as x - x is not reliable: if x is a product, a
// compiler may fuse the two into one operation. Its result is the product's rounding error.
constexpr bool is_finite(double x) {
  constexpr double kLargest = std::numeric_limits<double>::max();
  return x >= -kLargest && x <= kLargest;
}

// min(1, threshold / (norm + 1e-6)), as in PyTorch's clip_grad_norm_; the small term keeps the quotient finite.
constexpr double clip_factor(double norm, double threshold) {
  const double factor = threshold / (norm + 1e-6);
  return factor < 1.0 ? factor : 1.0;
}

constexpr VerdictRecord fold_verdicts(const VerdictRecord* records, int64_t count) {
  VerdictRecord total;
  for (int64_t index = 0; index < count; ++index) total += records[index];
  return total;
}

constexpr Verdict verdict_of(const VerdictRecord& total) {
  return {.loss_sum = total.loss.value(),
          .loss_finite = total.loss.is_finite(),
          .loss_rank = total.loss_rank,
          .state_finite = total.state_fault == 0,
          .gradients_finite = total.nan_count == 0 && total.inf_count == 0,
          .found_nan = total.nan_count != 0,
          .first_bad = total.first_bad,
          .sum_squares = total.squares.value(),
          .stop_request = total.stop_request,
          .stop_rank = total.stop_rank};
}

// The comparisons are false for NaN, which is therefore a spike.
constexpr bool is_spike(double loss_sum, double grad_norm, const UpdatePlan& plan) {
  return !(loss_sum <= plan.loss_limit) || !(grad_norm <= plan.norm_limit);
}

constexpr UpdateDecision decide_update(const VerdictRecord& total, const UpdatePlan& plan, bool hold) {
  UpdateDecision decision;
  decision.step = plan.step;
  decision.verdict = verdict_of(total);
  decision.grad_norm = std::sqrt(decision.verdict.sum_squares) * plan.unscale;
  // A scale without a floor can become so small that its inverse, and with it the unscaled gradient, is not finite.
  const bool usable = decision.verdict.gradients_finite && is_finite(decision.grad_norm);
  decision.outcome = !decision.verdict.state_finite                                  ? StepOutcome::kStateFault
                     : !decision.verdict.loss_finite                                 ? StepOutcome::kLossFault
                     : !usable                                                       ? StepOutcome::kGradientOverflow
                     : is_spike(decision.verdict.loss_sum, decision.grad_norm, plan) ? StepOutcome::kSpike
                                                                                     : StepOutcome::kClean;
  decision.held = hold;
  if (decision.applied()) decision.clip_factor = clip_factor(decision.grad_norm, plan.clip_threshold);
  return decision;
}

constexpr UpdateControl control_of(const UpdateDecision& decision, const UpdatePlan& plan) {
  UpdateControl control;
  control.apply = decision.applied() ? 1 : 0;
  control.gradient_multiplier = plan.unscale * decision.clip_factor;
  control.learning_rate = plan.learning_rate;
  control.bias_correction1 = plan.bias_correction1;
  control.bias_correction2 = plan.bias_correction2;
  control.update = plan.update;
  return control;
}

}  // namespace mantissa
