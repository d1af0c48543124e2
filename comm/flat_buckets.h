// FlatBuckets: owns the fp32 gradient and the working weight of every bucket of a BucketLayout, and binds
// Parameter::gradient and Parameter::weight as views from birth. Padding is zero, always: nobody writes it.
#pragma once

#include "comm/bucket_layout.h"
#include "comm/communicator.h"
#include "core/backend/backend.h"

namespace mantissa {

// What of the buckets other ranks are to have: it is allocated in memory that the ranks of a node share, where the
// transport has such memory and the device computes in it. If all ranks of the job share it, there is one copy of the
// weights for all of them.
struct SentBuckets {
  Communicator* communicator = nullptr;
  bool gradients = false;
  bool weights = false;
};

class FlatBuckets {
 public:
  // `parameters` must outlive the buckets. Weights and gradients start as zeros. Collective where anything is sent.
  FlatBuckets(ParameterSet& parameters, BucketLayout layout, Backend& backend, const SentBuckets& sent = {});

  ParameterSet& parameters() const { return parameters_; }
  const BucketLayout& layout() const { return layout_; }
  int size() const { return static_cast<int>(layout_.buckets().size()); }

  const Tensor& gradient(int bucket) const { return gradients_.at(static_cast<size_t>(bucket)); }  // (numel) fp32
  const Tensor& weight(int bucket) const { return weights_.at(static_cast<size_t>(bucket)); }  // (numel) working dtype
  // The part of a bucket that is `rank`'s shard: (shard_numel).
  Tensor weight_shard(int bucket, int rank) const;
  // Whether the weights are the same memory on all ranks: what one rank writes, all have, and nothing of it can be
  // sent.
  bool weights_in_common() const { return weights_in_common_; }
  // Every parameter's weight has changed.
  void bump_versions();

  size_t gradient_bytes() const;
  size_t weight_bytes() const;  // of weights in common: this rank's part

 private:
  ParameterSet& parameters_;
  BucketLayout layout_;
  std::vector<Tensor> gradients_, weights_;
  bool weights_in_common_ = false;
};

}  // namespace mantissa
