// The small exchanges that end the passes of a step. All are queued on the stream; the host does not wait.
//
// VerdictReduction: the statistics of this rank's gradient shards, gathered and added up in the groups of each stage of
// an exchange. The sums are exact, so every rank makes the same decision of them, for any number of ranks and stages.
// It stays on the device, where it drives the update; the host reads it later. Replicated gradients are recorded by
// shards as well, so that each element counts once.
//
// AmaxExchange: one gather of the amaxes for delayed scaling; every rank makes the same scales of them.
#pragma once

#include "comm/gradient_reducer.h"
#include "core/autograd/delayed_scales.h"
#include "core/kernels/reduction/records.h"

namespace mantissa {

// The origin of a non-finite gradient.
struct Offender {
  int32_t parameter = -1;  // index in the ParameterSet
  int64_t element = -1;
  int32_t rank = -1;  // -1: every rank's contribution was finite, their sum was not
  // Whether this element is NaN (else Inf): as sent, or summed if rank is -1. Verdict::found_nan is about all elements.
  bool is_nan = false;
};

class VerdictReduction {
 public:
  // Everything passed by reference must outlive the object.
  VerdictReduction(const ExchangeGroups& groups, Backend& backend, Stream& stream);

  // Queues the upload of what the next decide() assumes.
  void plan(const UpdatePlan& plan) { backend_.upload(&plan, plan_, stream_); }
  // After reducer.finish(). losses (M) fp32, on the device: of this rank's micro-batches, each summed over its
  // non-ignored tokens, in nats; a sum that is not finite is a fault. state_faults: ShardedOptimizer::faults(), or
  // undefined. Queues the gather and the decision; if the update is to be applied, the reducer keeps the residuals of
  // its last reduction. Collective.
  void decide(const Tensor& losses, const GradientReducer& reducer, const Tensor& state_faults = {});
  // u8 of an UpdateControl, and of an UpdateDecision: the last decision, on the device.
  const Tensor& control() const { return control_; }
  const Tensor& decision() const { return decision_; }
  UpdateDecision read_decision();  // waits for the last decision
  // Allows updates again after a step that was not applied.
  void release_hold() { backend_.upload(&kReleased, hold_, stream_); }

  // The first non-finite gradient in order of parameter, element and rank, among the ranks' own gradients as they were
  // sent, so that an overflow of the wire dtype is found too. If only the sum overflowed, rank is -1 and the element
  // the verdict's. ContractError if gradients are finite. Slow; collective; before the next begin().
  Offender find_offender(const Verdict& verdict, GradientReducer& reducer, const FlatBuckets& buckets);

 private:
  static constexpr int32_t kReleased = 0;

  TensorStats stats_of(const Tensor& values);
  // Whether this rank holds the sum at `flat_index` and it is NaN.
  bool holds_nan_sum(int64_t flat_index, const GradientReducer& reducer, const BucketLayout& layout);

  const ExchangeGroups groups_;
  Communicator& communicator_;  // all ranks
  Backend& backend_;
  Stream& stream_;
  std::vector<Tensor> mine_, gathered_;  // VerdictRecords by stage: this rank's, with what it has gathered before; all
  Tensor plan_, hold_, control_, decision_;
  Tensor scratch_stats_;
};

class AmaxExchange {
 public:
  // Everything passed by reference must outlive the object.
  AmaxExchange(DelayedScales& scales, Communicator& communicator, Backend& backend, Stream& stream);

  // After the passes of a step on all ranks; `decision` as for DelayedScales::advance(). Collective.
  void run(const Tensor& decision);

  size_t size_bytes() const { return gathered_.defined() ? gathered_.size_bytes() : 0; }

 private:
  DelayedScales& scales_;
  Communicator& communicator_;
  Backend& backend_;
  Stream& stream_;
  Tensor gathered_;  // (N, S * sizeof(QuantizeRecord)) u8
};

}  // namespace mantissa
