#include "comm/lane_sums.h"

#include <bit>

#include "core/kernels/elementwise/args.h"

namespace mantissa {
namespace {

int64_t largest_bucket(const BucketLayout& layout) {
  int64_t most = 0;
  for (const BucketLayout::Bucket& bucket : layout.buckets()) most = std::max(most, bucket.numel);
  return most;
}

// The number of tensors of a bucket's size, nodes included.
int tensors_of(const OwnLanes& lanes) { return lanes.slots + std::max(0, lanes.most_level - 1); }

}  // namespace

OwnLanes::OwnLanes(int rank, int ranks, int lanes)
    : begin(lane_begin(rank, ranks, lanes)), end(lane_begin(rank + 1, ranks, lanes)) {
  for (int other = 0; other < ranks; ++other) {
    const int64_t last = lane_begin(other + 1, ranks, lanes);
    int nodes = 0;
    for (int64_t at = lane_begin(other, ranks, lanes); at < last; ++nodes) {
      const LaneNode node{at, level_at(at, last)};
      most_level = std::max(most_level, node.level);
      at = node.end();
    }
    slots = std::max(slots, nodes);
  }
}

size_t LaneSums::bytes_of(const BucketLayout& layout, const ReducerConfig& config) {
  const OwnLanes lanes(0, layout.ranks(), layout.lanes());
  size_t bytes = 0;
  for (const BucketLayout::Bucket& bucket : layout.buckets()) {
    bytes +=
        static_cast<size_t>(tensors_of(lanes) * bucket.numel * size_bytes(dtype_of(wide_of(bucket.dtype), config)));
  }
  return bytes + (config.rounds() ? static_cast<size_t>(largest_bucket(layout) * size_bytes(config.rounded())) : 0);
}

LaneSums::LaneSums(const FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend,
                   const ReducerConfig& config, const WireRounding& rounding)
    : buckets_(buckets),
      backend_(backend),
      config_(config),
      rounding_(rounding),
      lanes_(groups.all().rank(), groups.all().size(), buckets.layout().lanes()),
      right_(static_cast<size_t>(std::max(0, lanes_.most_level - 1))) {
  constexpr const char* kWhat = "sums of lanes";
  const auto dtype = [&](int bucket) { return dtype_of(buckets.gradient(bucket).dtype(), config); };
  size_t bytes = 0;
  for (int bucket = 0; bucket < buckets.size(); ++bucket) {
    bytes += static_cast<size_t>(lanes_.slots * buckets.gradient(bucket).numel() * size_bytes(dtype(bucket)));
  }
  const auto shared = allocate_sent(*groups.stages()[0].group, backend, bytes, kWhat);
  size_t offset = 0;
  for (int bucket = 0; bucket < buckets.size(); ++bucket) {
    const int64_t numel = buckets.gradient(bucket).numel();
    const Shape shape{lanes_.slots, numel};
    nodes_.push_back(shared ? Tensor(shared, dtype(bucket), shape, offset)
                            : backend.make_tensor(dtype(bucket), shape, kWhat));
    offset += nodes_.back().size_bytes();
    for (std::vector<Tensor>& level : right_) level.push_back(backend.make_tensor(dtype(bucket), {numel}, kWhat));
  }
  if (!config.rounds()) return;
  const auto most = static_cast<size_t>(largest_bucket(buckets.layout()) * size_bytes(config.rounded()));
  rounded_ = backend.allocate(most, "a rounded gradient");
}

Tensor LaneSums::place(int bucket, int slot, int64_t inside) const {
  const Tensor& nodes = this->nodes(bucket);
  if (inside == 0) return nodes.slice(slot * nodes.dim(1), nodes.dim(1));
  const int level = std::countr_zero(static_cast<uint64_t>(inside));  // of the right child that starts there
  return right_[static_cast<size_t>(level - 1)][static_cast<size_t>(bucket)];
}

void LaneSums::add(int bucket, int64_t lane, Stream& stream) {
  MANTISSA_CHECK(lane >= lanes_.begin && lane < lanes_.end, "[lane_sums.add] lane {} is not in [{}, {})", lane,
                 lanes_.begin, lanes_.end);
  int slot = 0;
  LaneNode node{lanes_.begin, level_at(lanes_.begin, lanes_.end)};  // of the slot
  for (; node.end() <= lane; ++slot) node = {node.end(), level_at(node.end(), lanes_.end)};
  Tensor value = buckets_.gradient(bucket);
  if (rounded_) {
    value = Tensor(rounded_, config_.rounded(), value.shape());
    rounding_.round(bucket, lane, value, stream);
  }
  int64_t inside = lane - node.begin;
  if (inside % 2 == 0) {
    backend_.run(CastArgs{.src = value, .dst = place(bucket, slot, inside)}, stream);
    return;
  }
  // A right child is complete: its left sibling starts where the lowest bit of its own start is cleared.
  for (int64_t lanes = 1; (inside & lanes) != 0; lanes *= 2) {
    inside -= lanes;
    const Tensor left = place(bucket, slot, inside);
    backend_.run(AddArgs{.a = left, .b = value, .y = left}, stream);
    value = left;
  }
}

}  // namespace mantissa
