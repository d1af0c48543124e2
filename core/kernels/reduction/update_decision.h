// The decision about an update, as plain records and a function that runs on the device (constexpr: nvcc compiles it
// for both sides). It turns the ranks' findings in loss and gradients into AdamW's UpdateControl. The host plans a step
// and reads the decision later; the update never waits for the host.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "core/kernels/optimizer/records.h"

namespace mantissa {

// Findings of one pass over gradients. A plain record on the tensor's device.
struct TensorStats {
  static constexpr int64_t kNone = INT64_MAX;
  int64_t first_bad = kNone;  // smallest index of a NaN or Inf
  int64_t nan_count = 0;
  int64_t inf_count = 0;
  double sum_squares = 0.0;  // of finite and non-finite values alike
  bool operator==(const TensorStats&) const = default;
  constexpr TensorStats& operator+=(const TensorStats& other) {
    if (other.first_bad < first_bad) first_bad = other.first_bad;
    nan_count += other.nan_count;
    inf_count += other.inf_count;
    sum_squares += other.sum_squares;
    return *this;
  }
};

// The findings of one rank.
struct VerdictRecord {
  TensorStats stats;      // of its shards of the summed gradients, by flat index
  double loss_sum = 0.0;  // over its non-ignored tokens, in nats
  int32_t stop_request = 0;
  int32_t state_fault = 0;  // not 0: an update has made its weights or moments non-finite
};

// The combined findings of all ranks, before any weight is updated: the same on every rank.
struct Verdict {
  double loss_sum = 0.0;  // of the global batch
  bool loss_finite = true;
  int32_t loss_rank = -1;  // first rank whose loss was not finite
  // The masters and moments that earlier updates have made. If they are not finite, neither loss nor gradients count.
  bool state_finite = true;

  // The gradients after reduction, before unscaling.
  bool gradients_finite = true;
  bool found_nan = false;         // else non-finite elements are Inf
  int64_t first_bad = INT64_MAX;  // smallest flat index of a non-finite element, see FlatBuckets
  double sum_squares = 0.0;

  int32_t stop_request = 0;  // of the first rank that asks to stop after this step; 0: no rank does
  int32_t stop_rank = -1;

  constexpr bool finite() const { return state_finite && loss_finite && gradients_finite; }
};

// The host's plan for a step, on the assumption that every earlier step is applied.
struct UpdatePlan {
  int64_t step = 0;
  double unscale = 1.0;         // makes the gradient that of the mean loss
  double clip_threshold = 0.0;  // of its norm; infinity for no clipping
  double learning_rate = 0.0;
  double bias_correction1 = 1.0, bias_correction2 = 1.0;
  uint32_t update = 0;  // from 1: UpdateControl::update
  // Not 0: this rank asks to stop after the step. It travels with the findings of the step, so that all ranks learn of
  // it at the same step without another message.
  int32_t stop_request = 0;
  // Limits of the summed loss of the global batch, and of the norm of the unscaled gradient. A step above a limit is a
  // spike and is not applied. Infinity: no limit.
  double loss_limit = std::numeric_limits<double>::infinity();
  double norm_limit = std::numeric_limits<double>::infinity();
};

enum class StepOutcome : uint8_t {
  kClean,
  kGradientOverflow,  // non-finite gradients under a finite loss
  kLossFault,         // non-finite loss
  kSpike,             // finite, but above a limit of the plan
  kStateFault,        // non-finite masters or moments: no later step mends them
};

struct UpdateDecision {
  int64_t step = -1;
  Verdict verdict;
  StepOutcome outcome = StepOutcome::kClean;
  double grad_norm = 0.0;    // of the unscaled gradient, before clipping
  double clip_factor = 1.0;  // 1 unless applied
  // An earlier step was not applied, so the plan of this step is based on a wrong assumption. The step changed nothing.
  bool held = false;

  constexpr bool applied() const { return outcome == StepOutcome::kClean && !held; }
};

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

constexpr TensorStats fold_stats(const TensorStats* stats, int64_t count) {
  TensorStats total;
  for (int64_t index = 0; index < count; ++index) total += stats[index];
  return total;
}

template <typename Loss>
constexpr double fold_losses(const Loss* losses, int64_t micro_batches) {
  double sum = 0.0;
  for (int64_t index = 0; index < micro_batches; ++index) sum += static_cast<double>(losses[index]);
  return sum;
}

constexpr Verdict fold_verdict(const VerdictRecord* records, int64_t ranks) {
  Verdict verdict;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const VerdictRecord& record = records[rank];
    const TensorStats& stats = record.stats;
    verdict.loss_sum += record.loss_sum;
    if (!is_finite(record.loss_sum) && verdict.loss_finite) {
      verdict.loss_finite = false;
      verdict.loss_rank = static_cast<int32_t>(rank);
    }
    if (stats.nan_count != 0 || stats.inf_count != 0) verdict.gradients_finite = false;
    if (stats.nan_count != 0) verdict.found_nan = true;
    if (stats.first_bad < verdict.first_bad) verdict.first_bad = stats.first_bad;
    verdict.sum_squares += stats.sum_squares;
    if (record.state_fault != 0) verdict.state_finite = false;
    if (record.stop_request != 0 && verdict.stop_request == 0) {
      verdict.stop_request = record.stop_request;
      verdict.stop_rank = static_cast<int32_t>(rank);
    }
  }
  return verdict;
}

// The comparisons are false for NaN, which is therefore a spike.
constexpr bool is_spike(double loss_sum, double grad_norm, const UpdatePlan& plan) {
  return !(loss_sum <= plan.loss_limit) || !(grad_norm <= plan.norm_limit);
}

constexpr UpdateDecision decide_update(const VerdictRecord* records, int64_t ranks, const UpdatePlan& plan, bool hold) {
  UpdateDecision decision;
  decision.step = plan.step;
  decision.verdict = fold_verdict(records, ranks);
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
