#include "comm/wire_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/round_up.h"

namespace mantissa {
namespace {

constexpr size_t kSlotAlignmentBytes = 64;

}  // namespace

WireScale wire_scale(const ReducerConfig& config, int ranks) {
  MANTISSA_CHECK(is_floating(config.wire), "[wire_plan] the wire dtype must be fp32, bf16 or fp16, got {}",
                 config.wire);
  MANTISSA_CHECK(ranks > 0, "[wire_plan] the number of ranks must be positive, got {}", ranks);
  if (config.wire == DType::kF32 || ranks == 1) return {};
  const int to_local_mean = static_cast<int>(std::bit_width(static_cast<unsigned>(ranks))) - 1;
  int room = 0;  // log2 of the smallest power of two whose square is at least N
  if (config.accumulation == Accumulation::kWire) {
    while ((int64_t{1} << (2 * room)) < ranks) ++room;
  }
  const int exponent = to_local_mean - room - config.boost_log2;
  return {std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent), std::ldexp(1.0f, -config.boost_log2)};
}

WirePlan plan_wire(const BucketLayout& layout, const ReducerConfig& config, ContributionPath path) {
  WirePlan plan;
  plan.scale = wire_scale(config, layout.ranks());
  plan.slots.resize(layout.buckets().size());
  if (layout.ranks() == 1) return plan;

  const auto wire_bytes = static_cast<size_t>(size_bytes(config.wire));
  const bool receives = path == ContributionPath::kExchanged;
  const bool sends = config.wire != DType::kF32 && (receives || config.sharding == Sharding::kReplicated);
  const size_t copies = (receives ? 1 : 0) + (sends ? 1 : 0);
  size_t largest = 0, all = 0;
  for (size_t index = 0; index < plan.slots.size(); ++index) {
    const BucketLayout::Bucket& bucket = layout.buckets()[index];
    WirePlan::Slot& slot = plan.slots[index];
    const size_t bytes = static_cast<size_t>(bucket.numel) * wire_bytes;
    slot.receive_bytes = receives ? bytes : 0;
    slot.send_bytes = sends ? bytes : 0;
    largest = std::max(largest, slot.send_bytes + slot.receive_bytes);
    all += slot.send_bytes + slot.receive_bytes;
    plan.result_bytes +=
        static_cast<size_t>(config.sharding == Sharding::kSharded ? bucket.shard_numel : bucket.numel) * sizeof(float);
  }
  const size_t ordinary = static_cast<size_t>(layout.capacity_bytes()) / sizeof(float) * wire_bytes * copies;
  plan.window_bytes =
      std::min(all, std::max(largest, round_up(ordinary, kSlotAlignmentBytes) * WirePlan::kBucketsInFlight));

  // Places go round the window like a ring; sizes are multiples of the alignment because buckets are multiples of 64
  // elements.
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

}  // namespace mantissa
