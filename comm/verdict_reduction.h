// VerdictReduction: what the reducer has found in this rank's shards of the summed gradients, one small gather, and
// every rank folds the same records in rank order into the same decision. All of it is queued on the stream: the
// decision stays on the device, where it drives the update, and the host reads it when it likes. Replicated gradients
// are examined by shards as well, so that each element counts once.
#pragma once

#include <memory>

#include "comm/gradient_reducer.h"
#include "core/kernels/reduction/args.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa {

// Where a non-finite gradient came from, found after a verdict that is not finite.
struct Offender {
  int32_t parameter = -1;  // index in the ParameterSet
  int64_t element = -1;
  int32_t rank = -1;  // -1: every rank's contribution was finite, their sum was not
  // What this very element held, NaN or else Inf: as the rank sent it, or summed if rank is -1. Verdict::found_nan is
  // about all elements of the sum and may differ.
  bool is_nan = false;
};

class VerdictReduction {
 public:
  // Everything passed by reference must outlive the object.
  VerdictReduction(Communicator& communicator, Backend& backend, Stream& stream);

  // What the next decide() is to assume. Queues its upload.
  void plan(const UpdatePlan& plan);
  // After reducer.finish(). losses (M) fp32, on the device: of this rank's micro-batches, each summed over its
  // non-ignored tokens, in nats; a sum that is not finite is a fault. Queues the gather and the decision. Collective.
  void decide(const Tensor& losses, const GradientReducer& reducer);
  // u8 of one UpdateControl and one UpdateDecision: what the last decide() leaves on the device.
  const Tensor& control() const { return control_; }
  const Tensor& decision() const { return decision_; }
  // Waits for the last decision.
  UpdateDecision read_decision();
  // Lets updates happen again after a step that was not applied.
  void release_hold();

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
  Tensor record_, records_;  // VerdictRecord: this rank's; all ranks'
  Tensor plan_, hold_, control_, decision_;
  Tensor scratch_stats_;
};

}  // namespace mantissa
