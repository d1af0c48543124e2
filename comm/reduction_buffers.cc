#include "comm/reduction_buffers.h"

#include <cmath>

#include "core/base/round_up.h"

namespace mantissa {
namespace {

constexpr size_t kSlotAlignmentBytes = 64;

ContributionPath choose_path(const FlatBuckets& buckets, const Communicator& communicator) {
  buckets.require_ranks(communicator.size(), "gradient_reducer");
  bool shared = communicator.size() > 1;
  for (int bucket = 0; bucket < buckets.size() && shared; ++bucket) {
    shared = communicator.rows_of_all(buckets.gradient(bucket)).rows.defined();
  }
  return shared ? ContributionPath::kInPlace : ContributionPath::kExchanged;
}

}  // namespace

WireScale wire_scale(const ReducerConfig& config, int ranks) {
  MANTISSA_CHECK(is_floating(config.wire), "[wire_plan] the wire dtype must be a floating dtype, got {}", config.wire);
  MANTISSA_CHECK(ranks > 0, "[wire_plan] the number of ranks must be positive, got {}", ranks);
  if (!config.rounds() || ranks == 1) return {};
  const int to_local_mean = static_cast<int>(std::bit_width(static_cast<unsigned>(ranks))) - 1;
  int headroom = 0;  // log2 of the smallest power of two whose square is at least N
  if (config.accumulation == Accumulation::kWire) {
    while ((int64_t{1} << (2 * headroom)) < ranks) ++headroom;
  }
  const int exponent = to_local_mean - headroom - config.prescale_log2;
  return {std::ldexp(1.0f, exponent), std::ldexp(1.0f, -exponent)};
}

WirePlan plan_wire(const BucketLayout& layout, const ReducerConfig& config, ContributionPath path) {
  WirePlan plan;
  plan.scale = wire_scale(config, layout.ranks());
  plan.slots.resize(layout.buckets().size());
  if (layout.ranks() == 1) return plan;

  const auto wire_bytes = static_cast<size_t>(size_bytes(config.wire));
  const bool receives = path == ContributionPath::kExchanged;
  const bool sends = config.rounds() && receives;
  const size_t copies = (receives ? 1 : 0) + (sends ? 1 : 0);
  size_t largest = 0, all = 0;
  for (size_t index = 0; index < plan.slots.size(); ++index) {
    const BucketLayout::Bucket& bucket = layout.buckets()[index];
    WirePlan::Slot& slot = plan.slots[index];
    const size_t bytes = static_cast<size_t>(bucket.numel) * wire_bytes;
    slot.receive_bytes = receives ? bytes : 0;
    slot.send_bytes = sends ? bytes : 0;
    largest = std::max(largest, bytes * copies);
    all += bytes * copies;
    const int64_t summed = config.sharding == Sharding::kSharded ? bucket.shard_numel : bucket.numel;
    plan.result_bytes += static_cast<size_t>(summed * size_bytes(wide_of(bucket.dtype)));
  }
  const size_t ordinary = static_cast<size_t>(layout.capacity_bytes()) / sizeof(float) * wire_bytes * copies;
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

ReductionBuffers::ReductionBuffers(const FlatBuckets& buckets, Communicator& communicator, Backend& backend,
                                   const ReducerConfig& config)
    : backend_(backend),
      config_(config),
      path_(choose_path(buckets, communicator)),
      plan_(plan_wire(buckets.layout(), config, path_)) {
  constexpr const char* kWireBuffers = "gradient wire buffers";
  if (config.rounds()) window_ = allocate_sent(communicator, backend, plan_.window_bytes, kWireBuffers);
  if (window_ == nullptr && plan_.window_bytes > 0) window_ = backend.allocate(plan_.window_bytes, kWireBuffers);
  for (int bucket = 0; bucket < buckets.size(); ++bucket) {
    const WirePlan::Slot& slot = plan_.slots[static_cast<size_t>(bucket)];
    buckets_.push_back(make_bucket(buckets.gradient(bucket), slot, communicator));
  }
  if (communicator.size() == 1) return;
  std::vector<Tensor> exchanged;  // in which collectives send and receive
  if (window_) exchanged.emplace_back(window_, DType::kU8, Shape{static_cast<int64_t>(window_->bytes())});
  for (const Bucket& bucket : buckets_) {
    if (!in_place() && !config.rounds()) exchanged.push_back(bucket.send);  // others are in the window
    if (config.sharding == Sharding::kReplicated) exchanged.push_back(bucket.result);
  }
  if (!exchanged.empty()) registration_ = communicator.register_buffers(exchanged);
}

ReductionBuffers::Bucket ReductionBuffers::make_bucket(const Tensor& gradient, const WirePlan::Slot& slot,
                                                       const Communicator& communicator) const {
  const int ranks = communicator.size();
  if (ranks == 1) return {.result = gradient};
  const Shape shape = gradient.shape();
  const int64_t shard = gradient.numel() / ranks;
  Bucket bucket;
  bucket.send = slot.send_bytes == 0 ? gradient : Tensor(window_, config_.wire, shape, slot.offset_bytes);
  if (in_place()) {
    bucket.contributions = communicator.rows_of_all(gradient.slice(communicator.rank() * shard, shard));
  } else {
    bucket.receive = Tensor(window_, config_.wire, shape, slot.offset_bytes + slot.send_bytes);
    bucket.contributions = {.rows = bucket.receive.view({ranks, shard}), .stride = shard};
  }
  const int64_t numel = config_.sharding == Sharding::kSharded ? shard : gradient.numel();
  bucket.result = backend_.make_tensor(gradient.dtype(), Shape{numel}, "summed gradient");
  return bucket;
}

size_t ReductionBuffers::bytes() const {
  size_t bytes = window_ ? window_->bytes() : 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.send.defined()) bytes += bucket.result.size_bytes();  // one rank: it is the gradient
  }
  return bytes;
}

}  // namespace mantissa
