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

// Adds the rest to a rank's sums.
constexpr void complete_record(VerdictRecord& record, int32_t rank, int32_t stop_request, int32_t state_fault) {
  if (!is_finite(record.loss.value())) record.loss_rank = rank;
  record.stop_request = stop_request;
  if (stop_request != 0) record.stop_rank = rank;
  record.state_fault = state_fault;
}

constexpr VerdictRecord fold_records(const VerdictRecord* records, int64_t count) {
  VerdictRecord all;
  for (int64_t index = 0; index < count; ++index) all += records[index];
  return all;
}

constexpr Verdict to_verdict(const VerdictRecord& all) {
  Verdict verdict;
  verdict.loss_sum = all.loss.value();
  verdict.loss_finite = all.loss_rank < 0;
  verdict.loss_rank = all.loss_rank;
  verdict.state_finite = all.state_fault == 0;
  verdict.gradients_finite = all.nan_count == 0 && all.inf_count == 0;
  verdict.found_nan = all.nan_count != 0;
  verdict.first_bad = all.first_bad;
  verdict.sum_squares = all.squares.value();
  verdict.stop_request = all.stop_request;
  verdict.stop_rank = all.stop_rank;
  return verdict;
}

// The comparisons are false for NaN, which is therefore a spike.
constexpr bool is_spike(double loss_sum, double grad_norm, const UpdatePlan& plan) {
  return !(loss_sum <= plan.loss_limit) || !(grad_norm <= plan.norm_limit);
}

// `all`: the records of all ranks together.
constexpr UpdateDecision decide_update(const VerdictRecord& all, const UpdatePlan& plan, bool hold) {
  UpdateDecision decision;
  decision.step = plan.step;
  decision.verdict = to_verdict(all);
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
