#include "comm/reduction_buffers.h"

#include <cmath>

#include "core/base/round_up.h"
#include "core/quant/coded_rows.h"

namespace mantissa {
namespace {

constexpr size_t kSlotAlignmentBytes = 64;

std::unique_ptr<LaneSums> make_lane_sums(const FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend,
                                         const ReducerConfig& config, const WireRounding& rounding) {
  const int lanes = buckets.layout().lanes();
  buckets.require_ranks(groups, "gradient_reducer");
  if (lanes == groups.all().size()) return nullptr;
  return std::make_unique<LaneSums>(buckets, groups, backend, config, rounding);
}

ContributionPath choose_path(const FlatBuckets& buckets, const ExchangeGroups& groups, const ReducerConfig& config,
                             const LaneSums* lane_sums) {
  Communicator& first = *groups.stages()[0].group;
  if (lane_sums == nullptr && config.rounds_at_sender()) return ContributionPath::kExchanged;
  if (first.size() == 1) return lane_sums != nullptr ? ContributionPath::kInPlace : ContributionPath::kExchanged;
  const NodeMemory* const memory = first.node_memory();
  bool shared = memory != nullptr;
  for (int bucket = 0; bucket < buckets.size() && shared; ++bucket) {
    const Tensor& sent = lane_sums != nullptr ? lane_sums->nodes(bucket) : buckets.gradient(bucket);
    shared = memory->rows_of_all(sent).rows.defined();
  }
  // The order of collectives depends on it, so all ranks take the same path.
  const auto all = all_gather_records(groups.all(), int32_t{shared});
  shared = std::ranges::count(all, 0) == 0;
  return shared ? ContributionPath::kInPlace : ContributionPath::kExchanged;
}

// The same place, as rows of another number and length.
Tensor rows_at(const Tensor& place, const Shape& shape) {
  const auto storage =
      std::make_shared<Storage>(place.raw(), static_cast<size_t>(shape.numel() * size_bytes(place.dtype())),
                                place.device(), [kept = place]() mutable { kept = {}; });
  return Tensor(storage, place.dtype(), shape);
}

}  // namespace

WireScale wire_scale(const ReducerConfig& config, int lanes) {
  MANTISSA_CHECK(is_floating(config.wire) || is_coded(config.wire),
                 "[wire_plan] the wire dtype must be a floating dtype, e4m3 or e5m2, got {}", config.wire);
  MANTISSA_CHECK(!is_coded(config.wire) || config.accumulation == Accumulation::kFp32,
                 "[wire_plan] contributions in {} are summed in fp32 only", config.wire);
  MANTISSA_CHECK(lanes > 0, "[wire_plan] the number of lanes must be positive, got {}", lanes);
  if (!config.rounds() || is_coded(config.wire) || lanes == 1) return {};
  const int to_local_mean = static_cast<int>(std::bit_width(static_cast<unsigned>(lanes))) - 1;
  int headroom = 0;  // log2 of the smallest power of two whose square is at least W
  if (config.accumulation == Accumulation::kWire) {
    while ((int64_t{1} << (2 * headroom)) < lanes) ++headroom;
  }
  const int exponent = to_local_mean - headroom - config.prescale_log2;
  return {std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent)};
}

std::vector<StageShape> stage_shapes(const BucketLayout& layout) {
  std::vector<StageShape> shapes;
  int64_t span = 1;  // ranks whose lanes a rank has added up
  for (const int members : layout.stages()) {
    const LaneGroup all{.lanes = layout.lanes(), .ranks = layout.ranks(), .span = span};
    shapes.push_back(
        {.slots = static_cast<int>(all.slots(layout.ranks() / span)), .members = members, .divisor = span});
    span *= members;
  }
  return shapes;
}

WirePlan plan_wire(const BucketLayout& layout, const ReducerConfig& config, ContributionPath path) {
  WirePlan plan;
  plan.scale = wire_scale(config, layout.lanes());
  plan.slots.resize(layout.buckets().size());
  if (layout.lanes() == 1) return plan;

  const bool has_lane_sums = layout.lanes() != layout.ranks();
  if (has_lane_sums) plan.lane_bytes = LaneSums::bytes_of(layout, config);
  const std::vector<StageShape> shapes = stage_shapes(layout);
  // Bytes of a bucket's nodes at the start of a stage.
  const auto bytes_of = [&](size_t stage, const BucketLayout::Bucket& bucket) {
    const bool is_leaf = stage == 0 && !has_lane_sums;
    const DType dtype = is_leaf ? config.wire : LaneSums::dtype_of(wide_of(bucket.dtype), config);
    const auto [slots, members, divisor] = shapes[stage];
    return static_cast<size_t>(slots * members * row_items(dtype, bucket.numel / divisor / members) *
                               size_bytes(dtype));
  };
  size_t largest = 0, all = 0, ordinary = 0;
  for (size_t index = 0; index < plan.slots.size(); ++index) {
    const BucketLayout::Bucket& bucket = layout.buckets()[index];
    WirePlan::Slot& slot = plan.slots[index];
    const bool receives = path == ContributionPath::kExchanged && layout.ranks() > 1;
    if (receives && config.rounds() && !has_lane_sums) slot.send_bytes = bytes_of(0, bucket);
    if (receives) slot.receive_bytes = bytes_of(0, bucket);
    for (size_t stage = 1; stage < shapes.size(); ++stage) slot.receive_bytes += 2 * bytes_of(stage, bucket);
    const size_t bytes = slot.send_bytes + slot.receive_bytes;
    largest = std::max(largest, bytes);
    all += bytes;
    ordinary = std::max(ordinary, bytes * static_cast<size_t>(layout.capacity_bytes()) /
                                      (static_cast<size_t>(bucket.numel) * sizeof(float)));
    const int64_t summed = config.sharding == Sharding::kSharded ? bucket.shard_numel : bucket.numel;
    plan.result_bytes += static_cast<size_t>(summed * size_bytes(wide_of(bucket.dtype)));
  }
  plan.window_bytes =
      std::min(all, std::max(largest, round_up(ordinary, kSlotAlignmentBytes) * WirePlan::kBucketsInFlight));

  // Places go round the window like a ring. Sizes are multiples of the alignment: buckets are multiples of 64 elements.
  size_t cursor = 0;
  for (size_t index = 0; index < plan.slots.size(); ++index) {
    WirePlan::Slot& slot = plan.slots[index];
    const size_t bytes = slot.send_bytes + slot.receive_bytes;
    if (cursor + bytes > plan.window_bytes) cursor = 0;
    slot.offset_bytes = cursor;
    cursor += bytes;
    for (size_t earlier = index; earlier-- > 0 && slot.blocker < 0;) {
      const WirePlan::Slot& other = plan.slots[earlier];
      const size_t other_end = other.offset_bytes + other.send_bytes + other.receive_bytes;
      if (slot.offset_bytes < other_end && other.offset_bytes < cursor) slot.blocker = static_cast<int>(earlier);
    }
  }
  return plan;
}

ReductionBuffers::ReductionBuffers(const FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend,
                                   const ReducerConfig& config)
    : flat_(buckets),
      groups_(groups),
      backend_(backend),
      config_(config),
      rounding_(buckets, groups.all().rank(), backend, config, wire_scale(config, buckets.layout().lanes()).before),
      lane_sums_(make_lane_sums(buckets, groups, backend, config, rounding_)),
      path_(choose_path(buckets, groups, config, lane_sums_.get())),
      plan_(plan_wire(buckets.layout(), config, path_)) {
  constexpr const char* kWireBuffers = "gradient wire buffers";
  Communicator& first = *groups.stages()[0].group;
  if (rounds_contributions() && !in_place()) window_ = allocate_sent(first, backend, plan_.window_bytes, kWireBuffers);
  if (window_ == nullptr && plan_.window_bytes > 0) window_ = backend.allocate(plan_.window_bytes, kWireBuffers);
  for (int bucket = 0; bucket < buckets.size(); ++bucket) buckets_.push_back(make_bucket(bucket));
  if (groups.all().size() == 1) return;
  std::vector<Tensor> exchanged;  // in which collectives send and receive
  if (window_) exchanged.emplace_back(window_, DType::kU8, Shape{static_cast<int64_t>(window_->bytes())});
  for (const Bucket& bucket : buckets_) {
    if (!in_place() && !rounds_contributions()) exchanged.push_back(bucket.stages[0].send);  // others are in the window
    if (config.sharding == Sharding::kReplicated) exchanged.push_back(bucket.result);
  }
  if (exchanged.empty()) return;
  for (const ExchangeGroups::Stage& stage : groups.stages()) {
    registrations_.push_back(stage.group->register_buffers(exchanged));
  }
}

ReductionBuffers::Bucket ReductionBuffers::make_bucket(int index) const {
  const Tensor& gradient = flat_.gradient(index);
  if (flat_.layout().lanes() == 1) return {.result = gradient};
  const BucketLayout::Bucket& layout = flat_.layout().bucket(index);
  const WirePlan::Slot& slot = plan_.slots[static_cast<size_t>(index)];
  const bool is_sharded = config_.sharding == Sharding::kSharded;
  Bucket bucket;
  const Shape shape{is_sharded ? layout.shard_numel : layout.numel};
  bucket.result = backend_.make_tensor(gradient.dtype(), shape, "summed gradient");
  const int64_t begin = is_sharded ? 0 : flat_.layout().shard_begin(index, groups_.all().rank());
  const Tensor shard = bucket.result.slice(begin, layout.shard_numel);
  Tensor send = lane_sums_ ? lane_sums_->nodes(index) : gradient.view({1, layout.numel});
  if (slot.send_bytes > 0) {
    const int64_t items = static_cast<int64_t>(slot.send_bytes) / size_bytes(config_.wire);
    send = Tensor(window_, config_.wire, {1, items}, slot.offset_bytes);
  }
  size_t offset = slot.offset_bytes + slot.send_bytes;
  for (size_t stage = 0; stage < groups_.stages().size(); ++stage) {
    bucket.stages.push_back(make_stage(stage, send, shard, offset));
    send = bucket.stages.back().next;
  }
  return bucket;
}

ReductionBuffers::Stage ReductionBuffers::make_stage(size_t index, const Tensor& send, const Tensor& result,
                                                     size_t& offset) const {
  const ExchangeGroups::Stage& group = groups_.stages()[index];
  const BucketLayout& layout = flat_.layout();
  const auto take = [&](DType dtype, const Shape& shape) {
    Tensor tensor(window_, dtype, shape, offset);
    offset += tensor.size_bytes();
    return tensor;
  };
  // Items and numbers of a member's part.
  const int64_t items = send.dim(1) / group.members, part = row_numel(send.dtype(), items);
  Stage stage{.send = send, .slot_stride = send.dim(1)};
  if (groups_.stages().size() > 1 || layout.lanes() != layout.ranks()) {
    stage.lanes = {.lanes = layout.lanes(), .ranks = layout.ranks(), .first = group.first, .span = group.span};
  }
  const Shape rows{stage.lanes.slots(group.members) * group.members, items};
  if (index > 0 || !in_place()) {
    stage.receive = take(send.dtype(), send.shape());
    stage.contributions = {.rows = rows_at(stage.receive, rows), .stride = items};
  } else {
    const Tensor mine = send.slice(group.group->rank() * items, items);
    stage.contributions =
        group.members == 1 ? SharedRows{.rows = send, .stride = items} : group.group->node_memory()->rows_of_all(mine);
    stage.contributions.rows = rows_at(stage.contributions.rows, rows);
  }
  if (index + 1 == groups_.stages().size()) {
    stage.out = result;
    return stage;
  }
  stage.next = take(LaneSums::dtype_of(result.dtype(), config_), {stage_shapes(layout)[index + 1].slots, part});
  const int64_t nodes = stage.lanes.nodes(group.members);
  stage.out = stage.next.slice(0, nodes * part).view({nodes, part});
  return stage;
}

size_t ReductionBuffers::bytes() const {
  size_t bytes = plan_.lane_bytes + rounding_.residual_bytes() + (window_ ? window_->bytes() : 0);
  for (const Bucket& bucket : buckets_) {
    if (!bucket.stages.empty()) bytes += bucket.result.size_bytes();  // of one lane: it is the gradient
  }
  return bytes;
}

}  // namespace mantissa
