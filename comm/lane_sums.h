// LaneSums: what a rank sends of its gradients if there are more lanes than ranks: its largest nodes of the tree
// (core/kernels/reduction/lane_tree.h), made as its lanes finish, like a binary counter.
//
// A lane's gradient is rounded to the wire dtype and added to a left sibling, then the sum to its own left sibling, and
// so on. A left child and its parent share memory, so a node of 2^k lanes takes k - 1 tensors beside its own.
#pragma once

#include "comm/wire_rounding.h"
#include "core/kernels/reduction/lane_tree.h"

namespace mantissa {

// The lanes of a rank, and how many of the largest nodes each rank has at most. Pure arithmetic.
struct OwnLanes {
  OwnLanes(int rank, int ranks, int lanes);

  int64_t begin = 0, end = 0;
  int slots = 1;       // the most nodes of any rank
  int most_level = 0;  // of a node of any rank: 2^level lanes

  int64_t count() const { return end - begin; }
};

class LaneSums {
 public:
  // Everything passed by reference must outlive the object. Collective.
  LaneSums(const FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend, const ReducerConfig& config,
           const WireRounding& rounding);

  // The dtype of the nodes of a bucket, whose gradients have the given dtype.
  static DType dtype_of(DType gradient, const ReducerConfig& config) {
    return config.accumulation == Accumulation::kWire && config.rounds() ? config.wire : gradient;
  }
  // Bytes of nodes and of the memory to make them.
  static size_t bytes_of(const BucketLayout& layout, const ReducerConfig& config);

  const OwnLanes& lanes() const { return lanes_; }
  // Adds a bucket's gradient of lane `lane`. A rank's lanes come in ascending order.
  void add(int bucket, int64_t lane, Stream& stream);
  // (slots, numel) of dtype_of(): the nodes in ascending order of lanes. Slots that this rank does not need are zero.
  const Tensor& nodes(int bucket) const { return nodes_.at(static_cast<size_t>(bucket)); }
  int used_slots() const { return static_cast<int>(count_nodes(lanes_.begin, lanes_.end)); }

 private:
  // The tensor for the node that starts at `lane`, `inside` lanes after the start of its slot's node.
  Tensor place(int bucket, int slot, int64_t inside) const;

  const FlatBuckets& buckets_;
  Backend& backend_;
  ReducerConfig config_;
  const WireRounding& rounding_;
  OwnLanes lanes_;
  std::vector<Tensor> nodes_;               // by bucket
  std::vector<std::vector<Tensor>> right_;  // by level - 1 and bucket: right children on the way
  std::shared_ptr<Storage> rounded_;        // of one lane and bucket; null without rounding
};

}  // namespace mantissa
