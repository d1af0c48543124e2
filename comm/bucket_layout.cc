#include "comm/bucket_layout.h"

#include <algorithm>
#include <map>

#include "core/base/round_up.h"

namespace mantissa {
BucketLayout::BucketLayout(const ParameterSet& parameters, int ranks, int64_t capacity_bytes,
                           const AlignmentOf& alignment_of)
    : ranks_(ranks), capacity_bytes_(capacity_bytes) {
  MANTISSA_CHECK(parameters.size() > 0, "[bucket_layout] there are no parameters to lay out");
  MANTISSA_CHECK(ranks > 0, "[bucket_layout] the number of ranks must be positive, got {}", ranks);
  MANTISSA_CHECK(capacity_bytes > 0, "[bucket_layout] the capacity must be positive, got {} bytes", capacity_bytes);
  const int64_t capacity = capacity_bytes / static_cast<int64_t>(sizeof(float));

  std::map<std::pair<DType, int64_t>, size_t> open;  // the bucket that is being filled, by dtype and alignment
  for (int index = parameters.size() - 1; index >= 0; --index) {
    const Parameter& parameter = parameters[index];
    const int64_t count = parameter.numel();
    MANTISSA_CHECK(count > 0, "[bucket_layout] parameter '{}' of shape {} is empty", parameter.name, parameter.shape);
    const int64_t alignment = alignment_of ? alignment_of(parameter) : kAlignmentElements;
    MANTISSA_CHECK(alignment > 0 && alignment % kAlignmentElements == 0,
                   "[bucket_layout] the alignment of '{}' must be a multiple of {} elements, got {}", parameter.name,
                   kAlignmentElements, alignment);
    const int64_t aligned = round_up(count, alignment);
    const std::pair kind(parameter.working_dtype, alignment);
    const auto found = open.find(kind);
    if (found == open.end() || buckets_[found->second].numel + aligned > capacity) {
      open[kind] = buckets_.size();
      buckets_.push_back({.dtype = parameter.working_dtype, .alignment = alignment, .segments = {}});
    }
    Bucket& bucket = buckets_[open[kind]];
    bucket.segments.push_back({.parameter = index, .begin = 0, .count = count, .offset = bucket.numel});
    bucket.numel += aligned;
  }

  // A bucket's last segment is its earliest parameter, the one whose gradient is ready last.
  std::sort(buckets_.begin(), buckets_.end(),
            [](const Bucket& a, const Bucket& b) { return a.segments.back().parameter > b.segments.back().parameter; });
  places_.resize(static_cast<size_t>(parameters.size()));
  for (size_t index = 0; index < buckets_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    bucket.numel = round_up(bucket.numel, bucket.alignment * ranks_);
    bucket.shard_numel = bucket.numel / ranks_;
    bucket.flat_begin = numel_;
    numel_ += bucket.numel;
    for (const Segment& segment : bucket.segments) {
      places_[static_cast<size_t>(segment.parameter)] = {static_cast<int>(index), segment.offset};
    }
  }
}

int64_t BucketLayout::flat_index(int parameter, int64_t element) const {
  const Place& place = places_.at(static_cast<size_t>(parameter));
  return buckets_[static_cast<size_t>(place.bucket)].flat_begin + place.offset + element;
}

std::optional<BucketLayout::Element> BucketLayout::locate(int64_t flat_index) const {
  MANTISSA_CHECK(flat_index >= 0 && flat_index < numel_, "[bucket_layout.locate] flat index {} is outside of [0, {})",
                 flat_index, numel_);
  const auto after_bucket =
      std::upper_bound(buckets_.begin(), buckets_.end(), flat_index,
                       [](int64_t index, const Bucket& bucket) { return index < bucket.flat_begin; });
  const Bucket& bucket = *std::prev(after_bucket);
  const int64_t offset = flat_index - bucket.flat_begin;
  const auto after_segment = std::upper_bound(bucket.segments.begin(), bucket.segments.end(), offset,
                                              [](int64_t at, const Segment& segment) { return at < segment.offset; });
  const Segment& segment = *std::prev(after_segment);
  const int64_t element = offset - segment.offset;
  if (element >= segment.count) return std::nullopt;
  return Element{segment.parameter, element};
}

std::vector<Segment> BucketLayout::segments(int bucket, int64_t begin, int64_t count) const {
  const Bucket& whole = buckets_.at(static_cast<size_t>(bucket));
  MANTISSA_CHECK(begin >= 0 && count >= 0 && begin + count <= whole.numel,
                 "[bucket_layout.segments] elements [{}, {}) are outside of bucket {} of {}", begin, begin + count,
                 bucket, whole.numel);
  std::vector<Segment> found;
  for (const Segment& segment : whole.segments) {
    const int64_t first = std::max(segment.offset, begin);
    const int64_t last = std::min(segment.offset + segment.count, begin + count);
    if (first >= last) continue;
    found.push_back({segment.parameter, first - segment.offset, last - first, first - begin});
  }
  return found;
}

std::vector<Segment> BucketLayout::shard_segments(int bucket, int rank) const {
  MANTISSA_CHECK(rank >= 0 && rank < ranks_, "[bucket_layout] rank {} of {}", rank, ranks_);
  const int64_t shard = buckets_.at(static_cast<size_t>(bucket)).shard_numel;
  return segments(bucket, rank * shard, shard);
}

}  // namespace mantissa
