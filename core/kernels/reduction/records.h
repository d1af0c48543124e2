// Findings in loss and gradients, the plan of an update and the decision about it. Plain records on the device.
#pragma once

#include <cstdint>
#include <limits>

#include "core/kernels/reduction/exact_sum.h"

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

// The findings of ranks. Sums of records are the same in any order and grouping: exact sums, minima and counts.
struct VerdictRecord {
  ExactSum loss{};                         // over the ranks' non-ignored tokens, in nats
  ExactSum squares{};                      // of the summed gradients in their shards, by which the statistics are
  int64_t first_bad = TensorStats::kNone;  // as in TensorStats, by flat index
  int64_t nan_count = 0, inf_count = 0;
  int32_t loss_rank = -1;    // first rank whose loss is not finite
  int32_t stop_request = 0;  // of the first rank that asks to stop
  int32_t stop_rank = -1;    // that rank
  int32_t state_fault = 0;   // not 0: an update has made weights or moments of a rank non-finite
  bool operator==(const VerdictRecord&) const = default;

  constexpr void add(const TensorStats& stats) {
    squares.add(stats.sum_squares);
    add_counts(stats.first_bad, stats.nan_count, stats.inf_count);
  }

  // After the additions of a rank: what is known of it alone.
  constexpr void set_rank(int32_t rank, int32_t its_stop_request, int32_t its_state_fault) {
    loss_rank = loss.is_finite() ? -1 : rank;
    stop_request = its_stop_request;
    stop_rank = its_stop_request != 0 ? rank : -1;
    state_fault = its_state_fault != 0 ? 1 : 0;
  }

  // Everything but the two sums.
  constexpr void add_findings(const VerdictRecord& other) {
    add_counts(other.first_bad, other.nan_count, other.inf_count);
    if (is_earlier(other.loss_rank, loss_rank)) loss_rank = other.loss_rank;
    if (is_earlier(other.stop_rank, stop_rank)) {
      stop_rank = other.stop_rank;
      stop_request = other.stop_request;
    }
    if (other.state_fault != 0) state_fault = 1;
  }

  constexpr VerdictRecord& operator+=(const VerdictRecord& other) {
    loss += other.loss;
    squares += other.squares;
    add_findings(other);
    return *this;
  }

 private:
  static constexpr bool is_earlier(int32_t rank, int32_t than) { return rank >= 0 && (than < 0 || rank < than); }
  constexpr void add_counts(int64_t first, int64_t nans, int64_t infinities) {
    if (first < first_bad) first_bad = first;
    nan_count += nans;
    inf_count += infinities;
  }
};

// The combined findings of all ranks, before any weight is updated: the same on every rank.
struct Verdict {
  double loss_sum = 0.0;  // of the global batch, rounded once
  bool loss_finite = true;
  int32_t loss_rank = -1;  // first rank whose loss was not finite
  // The masters and moments that earlier updates have made. If they are not finite, neither loss nor gradients count.
  bool state_finite = true;

  // The gradients after reduction, before unscaling.
  bool gradients_finite = true;
  bool found_nan = false;         // else non-finite elements are Inf
  int64_t first_bad = INT64_MAX;  // smallest flat index of a non-finite element, see FlatBuckets
  double sum_squares = 0.0;       // the sum of the statistics' squares, rounded once

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

}  // namespace mantissa
