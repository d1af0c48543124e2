// BucketLayout: the place of each parameter in the flat buckets, and each rank's shard of a bucket. Pure arithmetic,
// the same on every rank. FlatBuckets: the memory of gradients and working weights in that layout.
//
// Frozen parameters have no place in the buckets, since they are neither reduced nor updated.
//
// Parameters lie in reverse order of use, the order in which the backward pass finishes their gradients. A bucket holds
// whole parameters of one working dtype and alignment; a parameter above the capacity gets its own bucket. Parameters
// start at a multiple of the alignment. Buckets are ordered by the use of their earliest parameter, latest first: the
// order in which they fill up, even if small fp32 parameters of the whole model share one.
//
// A bucket is cut into one unit for each lane, of equal length and a multiple of the alignment; a rank's shard is
// ceil(lanes / ranks) units. Statistics of units do not depend on the number of ranks. If ranks do not divide lanes,
// the bucket ends in units that only make its shards equal.
//
// The flat index of an element is its position in the concatenation of all buckets, padding included.
#pragma once

#include "comm/exchange_groups.h"
#include "core/autograd/parameter.h"
#include "core/backend/backend.h"
#include "core/base/round_up.h"

namespace mantissa {

// Elements [begin, begin + count) of a parameter, at `offset` of the range that the function was asked about.
struct Segment {
  int parameter = -1;  // index in the ParameterSet
  int64_t begin = 0;
  int64_t count = 0;
  int64_t offset = 0;
  bool operator==(const Segment&) const = default;
};

// The ranks among which buckets are laid out.
struct RankLayout {
  // A number of lanes of 0: the ranks; no stages: one (exchange_groups.h).
  RankLayout(int number, int number_of_lanes = 0, std::vector<int> of_stages = {})  // NOLINT: most have ranks alone
      : ranks(number), lanes(number_of_lanes == 0 ? number : number_of_lanes), stages(std::move(of_stages)) {
    if (stages.empty()) stages = {ranks};
  }

  int ranks, lanes;
  std::vector<int> stages;
};

class BucketLayout {
 public:
  static constexpr int64_t kAlignmentElements = 64;
  // Gradients of about a million elements: larger messages are slower in shared memory, smaller ones pay latency.
  static constexpr int64_t kDefaultCapacityBytes = int64_t{4} << 20;

  // The alignment of a parameter in elements, a multiple of kAlignmentElements.
  using AlignmentOf = std::function<int64_t(const Parameter& parameter)>;

  struct Bucket {
    DType dtype = DType::kF32;  // of the working weights
    int64_t alignment = kAlignmentElements;
    int64_t flat_begin = 0;  // flat index of its first element
    int64_t numel = 0;       // padding included; ranks * shard_numel
    int64_t shard_numel = 0;
    int64_t unit_numel = 0;
    std::vector<Segment> segments;  // whole parameters by ascending offset in the bucket
  };
  struct Element {
    int parameter = -1;
    int64_t element = 0;
    bool operator==(const Element&) const = default;
  };

  // capacity_bytes counts fp32 gradients; the default of alignment_of is kAlignmentElements for all. Needs no tensors.
  // ContractError without trainable parameters, for an empty one, unless all numbers are positive, and for fewer lanes
  // than ranks.
  BucketLayout(const ParameterSet& parameters, const RankLayout& ranks, int64_t capacity_bytes = kDefaultCapacityBytes,
               const AlignmentOf& alignment_of = {});

  int ranks() const { return ranks_.ranks; }
  int lanes() const { return ranks_.lanes; }
  const std::vector<int>& stages() const { return ranks_.stages; }
  int units_per_shard() const { return divide_up(lanes(), ranks()); }
  // Where the shard of a rank begins in a bucket.
  int64_t shard_begin(int bucket, int rank) const {
    return shard_after_stages(rank, stages()) * this->bucket(bucket).shard_numel;
  }
  int rank_of_shard(int64_t shard) const;
  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t numel() const { return numel_; }  // all buckets, padding included
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const Bucket& bucket(int index) const { return buckets_.at(static_cast<size_t>(index)); }
  size_t frozen_bytes() const { return frozen_bytes_; }  // bytes of the working weights of frozen parameters
  // -1 for a frozen parameter.
  int bucket_of(int parameter) const { return places_.at(static_cast<size_t>(parameter)).bucket; }

  int64_t flat_index(int parameter, int64_t element) const {
    const Place& place = places_.at(static_cast<size_t>(parameter));
    return bucket(place.bucket).flat_begin + place.offset + element;
  }
  std::optional<Element> locate(int64_t flat_index) const;  // the element at a flat index; nothing for padding

  // The parameters in [begin, begin + count) of a bucket, by ascending offset; offsets count from `begin`.
  std::vector<Segment> segments(int bucket, int64_t begin, int64_t count) const;
  std::vector<Segment> shard_segments(int bucket, int rank) const;

 private:
  struct Place {
    int bucket = -1;
    int64_t offset = 0;
  };

  RankLayout ranks_;
  int64_t capacity_bytes_;
  int64_t numel_ = 0;
  size_t frozen_bytes_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter index
};

// Zeroed memory that the ranks of a node share; null without any, or on a GPU. Collective, of one size.
std::shared_ptr<Storage> allocate_sent(Communicator& communicator, const Backend& backend, size_t bytes,
                                       const char* what);

// The tensors that other ranks read. FlatBuckets puts them in memory that the ranks of a node share, if allocate_sent()
// gives such memory. If all ranks of the job share it, they have one copy of the weights in common.
struct SentBuckets {
  Communicator* communicator = nullptr;
  bool gradients = false;
  bool weights = false;
};

// Owns the gradient and the working weight of every bucket, and binds Parameter::gradient and Parameter::weight as
// views. Padding is always zero: nothing writes it. Every rank has its own copy of each frozen weight.
class FlatBuckets {
 public:
  // `parameters` must outlive the buckets. Weights and gradients start as zeros. Collective if anything is sent.
  FlatBuckets(ParameterSet& parameters, BucketLayout layout, Backend& backend, const SentBuckets& sent = {});

  ParameterSet& parameters() const { return parameters_; }
  const BucketLayout& layout() const { return layout_; }
  int size() const { return static_cast<int>(layout_.buckets().size()); }

  const Tensor& gradient(int bucket) const {
    return gradients_.at(static_cast<size_t>(bucket));
  }  // (numel) wide_of(working dtype)
  const Tensor& weight(int bucket) const { return weights_.at(static_cast<size_t>(bucket)); }  // (numel) working dtype
  Tensor weight_shard(int bucket, int rank) const;                                             // (shard_numel)
  // Whether all ranks have the same memory for weights: a write of one rank is seen by all, and nothing is sent.
  bool weights_in_common() const { return weights_in_common_; }
  // ContractError unless the layout is for these ranks and stages.
  void require_ranks(const ExchangeGroups& groups, const char* caller) const;
  // Sets the weights of frozen parameters to their initial values.
  void initialize_frozen(uint64_t seed, Backend& backend, Stream& stream);
  // Call when every trainable parameter's weight has changed.
  void bump_versions() {
    for (int index = 0; index < parameters_.size(); ++index) {
      if (parameters_[index].is_trainable) ++parameters_[index].version;
    }
  }

  size_t gradient_bytes() const;
  size_t weight_bytes() const;  // with frozen ones; of weights in common: this rank's part

 private:
  ParameterSet& parameters_;
  BucketLayout layout_;
  std::vector<Tensor> gradients_, weights_;
  bool weights_in_common_ = false;
};

}  // namespace mantissa
