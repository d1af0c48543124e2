// ReductionBuffers: where the contributions to each bucket are found, where they travel, and where their sum goes.
//
// The ranks of one node whose gradients lie in memory that all of them share read each other's there
// (ContributionPath::kInPlace). Else contributions travel through the window of wire_plan.h.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/flat_buckets.h"
#include "comm/reducer_config.h"
#include "comm/wire_plan.h"

namespace mantissa {

class ReductionBuffers {
 public:
  struct Bucket {
    // (numel) in the wire dtype: what is sent, of contributions and of sums. The gradient itself for an fp32 wire.
    Tensor send{};
    Tensor receive{};            // (numel) in the wire dtype; undefined where contributions are read in place
    SharedRows contributions{};  // (N, shard): all ranks' to this rank's shard
    Tensor result{};             // fp32: the sum, of the shard or, replicated, of all; the gradient itself for one rank
  };

  // Collective.
  ReductionBuffers(const FlatBuckets& buckets, Communicator& communicator, Backend& backend,
                   const ReducerConfig& config);

  const Bucket& operator[](int bucket) const { return buckets_.at(static_cast<size_t>(bucket)); }
  const WirePlan& plan() const { return plan_; }
  ContributionPath path() const { return path_; }
  // Of shape `shape` in the wire dtype, for values that nobody else keeps: in the window, if there is one.
  Tensor scratch(const Shape& shape) const;
  // Of wire buffers and summed gradients.
  size_t bytes() const;

 private:
  Bucket make_bucket(const Tensor& gradient, const WirePlan::Slot& slot, const Communicator& communicator) const;
  // Those that collectives send and receive in.
  std::vector<Tensor> exchanged() const;
  bool in_place() const { return path_ == ContributionPath::kInPlace; }

  Backend& backend_;
  ReducerConfig config_;
  ContributionPath path_;
  WirePlan plan_;
  std::shared_ptr<Storage> window_;  // null where nothing needs it
  std::vector<Bucket> buckets_;
  std::unique_ptr<Registration> registration_;  // the last member: goes before the buffers
};

}  // namespace mantissa
