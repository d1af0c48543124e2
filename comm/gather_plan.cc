#include "comm/gather_plan.h"

#include <algorithm>

#include "core/base/round_up.h"

namespace mantissa {
namespace {

constexpr int64_t kRowAlignmentBytes = 64;

int64_t aligned(int64_t bytes) { return round_up(bytes, kRowAlignmentBytes); }

GatherPlan::Bucket plan_bucket(const BucketLayout& layout, int index, const CodedWeights& coded) {
  const BucketLayout::Bucket& whole = layout.buckets()[static_cast<size_t>(index)];
  GatherPlan::Bucket bucket;
  bool any_coded = false;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    std::vector<GatherPlan::Piece>& pieces = bucket.ranks.emplace_back();
    int64_t end = 0;
    for (const Segment& segment : layout.shard_segments(index, rank)) {
      const auto format = coded[static_cast<size_t>(segment.parameter)];
      any_coded = any_coded || format;
      pieces.push_back({.parameter = segment.parameter,
                        .offset = rank * whole.shard_numel + segment.offset,
                        .count = segment.count,
                        .row_offset = end,
                        .format = format});
      end = aligned(end + segment.count * (format ? 1 : size_bytes(whole.dtype)));
    }
    bucket.row_bytes = std::max(bucket.row_bytes, end);
  }
  if (!any_coded || bucket.row_bytes >= whole.shard_numel * size_bytes(whole.dtype)) return {};
  return bucket;
}

}  // namespace

GatherPlan plan_gather(const BucketLayout& layout, const CodedWeights& coded) {
  GatherPlan plan;
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const BucketLayout::Bucket& whole = layout.buckets()[index];
    const auto shard_bytes = static_cast<size_t>(whole.shard_numel * size_bytes(whole.dtype));
    plan.buckets.push_back(coded.empty() ? GatherPlan::Bucket() : plan_bucket(layout, static_cast<int>(index), coded));
    const GatherPlan::Bucket& bucket = plan.buckets.back();
    const auto row_bytes = static_cast<size_t>(bucket.row_bytes);
    plan.stored_bytes += shard_bytes;
    plan.sent_bytes += bucket.coded() ? row_bytes : shard_bytes;
    if (!bucket.coded()) continue;
    plan.slot_bytes = std::max(plan.slot_bytes, row_bytes * static_cast<size_t>(layout.ranks()));
    plan.shard_bytes += shard_bytes;
  }
  return plan;
}

}  // namespace mantissa
