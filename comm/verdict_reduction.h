// VerdictReduction: one pass over this rank's shards of the summed gradients, one small gather, and every rank folds
// the same records in rank order into the same Verdict. Replicated gradients are examined by shards as well, so that
// each element counts once.
#pragma once

#include "comm/gradient_reducer.h"
#include "core/optim/verdict.h"

namespace mantissa {

// This rank's part of the loss of a step: summed over its non-ignored tokens, in nats. A sum that is not finite is a
// fault.
struct LocalLoss {
  double sum = 0.0;
  int64_t tokens = 0;
};

// What each rank hands in.
struct VerdictRecord {
  LocalLoss loss;
  TensorStats stats;  // of this rank's shards, indexed by flat index
};

// Folds the records of all ranks, in rank order.
Verdict fold_verdict(std::span<const VerdictRecord> records);

class VerdictReduction {
 public:
  VerdictReduction(Communicator& communicator, Backend& backend, Stream& stream);

  // After reducer.finish(). Collective.
  Verdict reduce(const LocalLoss& loss, const GradientReducer& reducer, const BucketLayout& layout);

  // Where a non-finite gradient came from: the first offender in parameter order, then by element, then by rank, among
  // the ranks' own gradients as they went on the wire, so that an overflow of the wire dtype is found too. rank is -1,
  // and the element that of the verdict, when only the sum overflowed. is_nan is the kind of that one value. Slow;
  // collective; only after a verdict whose gradients are not finite, and before the next reducer.begin().
  Offender find_offender(const Verdict& verdict, GradientReducer& reducer, const FlatBuckets& buckets);

 private:
  TensorStats stats_of(const Tensor& values);
  // Whether this rank holds the sum at `flat_index` and it is NaN.
  bool holds_nan_sum(int64_t flat_index, const GradientReducer& reducer, const BucketLayout& layout);

  Communicator& communicator_;
  Backend& backend_;
  Stream& stream_;
  Tensor record_;
};

}  // namespace mantissa
