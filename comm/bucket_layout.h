// BucketLayout: where each parameter lies in the flat buckets, and which part of a bucket is which rank's shard. Pure
// arithmetic, no memory: the same on every rank.
//
// Parameters are laid out in reverse order of use, the order in which the backward pass finishes their gradients. A
// bucket holds whole parameters of one working dtype and alignment; a parameter above the capacity gets a bucket of its
// own. Every parameter starts at a multiple of the alignment, 64 elements unless something asks for more, and a
// bucket's length is a multiple of alignment * ranks, so that all shards are equally long and aligned, and begin at a
// multiple of the alignment in their parameter. Buckets are ordered by the use of their earliest parameter, latest
// first: the order in which they fill up, also when a bucket of small fp32 parameters spans the whole model beside many
// 16-bit ones.
//
// The flat index of an element is its position in the concatenation of all buckets, padding included.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/autograd/parameter.h"

namespace mantissa {

// A stretch of one parameter: elements [begin, begin + count), at `offset` of whatever was asked about.
struct Segment {
  int parameter = -1;  // index in the ParameterSet
  int64_t begin = 0;
  int64_t count = 0;
  int64_t offset = 0;
  bool operator==(const Segment&) const = default;
};

class BucketLayout {
 public:
  static constexpr int64_t kAlignmentElements = 64;
  // Gradients of about a million elements: larger messages are slower in shared memory, smaller ones pay latency.
  static constexpr int64_t kDefaultCapacityBytes = int64_t{4} << 20;

  // The elements of a parameter, from a multiple of their number on, that no two ranks share: a multiple of
  // kAlignmentElements.
  using AlignmentOf = std::function<int64_t(const Parameter& parameter)>;

  struct Bucket {
    DType dtype = DType::kF32;  // of the working weights
    int64_t alignment = kAlignmentElements;
    int64_t flat_begin = 0;  // flat index of its first element
    int64_t numel = 0;       // padding included; ranks * shard_numel
    int64_t shard_numel = 0;
    std::vector<Segment> segments;  // whole parameters by ascending offset in the bucket
  };
  struct Element {
    int parameter = -1;
    int64_t element = 0;
    bool operator==(const Element&) const = default;
  };

  // capacity_bytes counts fp32 gradients; alignment_of: kAlignmentElements for all if there is none. Reads what
  // parameters are, not what is bound to them. ContractError if there is nothing to lay out, a parameter is empty, or
  // ranks, capacity or an alignment are not positive.
  BucketLayout(const ParameterSet& parameters, int ranks, int64_t capacity_bytes = kDefaultCapacityBytes,
               const AlignmentOf& alignment_of = {});

  int ranks() const { return ranks_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  int bucket_of(int parameter) const { return places_.at(static_cast<size_t>(parameter)).bucket; }
  int64_t offset_in_bucket(int parameter) const { return places_.at(static_cast<size_t>(parameter)).offset; }
  int64_t numel() const { return numel_; }  // all buckets, padding included

  int64_t flat_index(int parameter, int64_t element) const;
  // The element at a flat index; nothing where there is padding.
  std::optional<Element> locate(int64_t flat_index) const;

  // What lies in [begin, begin + count) of a bucket, by ascending offset; offsets count from `begin`.
  std::vector<Segment> segments(int bucket, int64_t begin, int64_t count) const;
  std::vector<Segment> shard_segments(int bucket, int rank) const;

 private:
  struct Place {
    int bucket = -1;
    int64_t offset = 0;
  };

  int ranks_;
  int64_t capacity_bytes_;
  int64_t numel_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter index
};

}  // namespace mantissa
