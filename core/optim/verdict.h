// Verdict: what all ranks know of a step before anybody updates a weight. One small record, reduced over all ranks,
// that drives every decision of the step, so that every rank decides alike.
#pragma once

#include <cstdint>

namespace mantissa {

struct Verdict {
  // The loss of the global batch, in nats, summed over its non-ignored tokens.
  double loss_sum = 0.0;
  int64_t tokens = 0;
  bool loss_finite = true;
  int32_t loss_rank = -1;  // first rank whose loss was not finite

  // The gradients after reduction, before unscaling.
  bool gradients_finite = true;
  bool found_nan = false;         // else what was found is Inf
  int64_t first_bad = INT64_MAX;  // smallest flat index of a non-finite element, see FlatBuckets
  double sum_squares = 0.0;

  bool finite() const { return loss_finite && gradients_finite; }
};

// Where a non-finite gradient came from, found after a verdict that is not finite.
struct Offender {
  int32_t parameter = -1;  // index in the ParameterSet
  int64_t element = -1;
  int32_t rank = -1;  // -1: every rank's contribution was finite, their sum was not
  // What this very element held, NaN or else Inf: as the rank sent it, or summed if rank is -1. Verdict::found_nan is
  // about all elements of the sum and may differ.
  bool is_nan = false;
};

}  // namespace mantissa
