#include "comm/gradient_reducer.h"

#include <cmath>

#include "core/base/round_up.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/reduction/args.h"

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

constexpr int64_t kStatsBytes = sizeof(TensorStats);

Tensor make_stats_records(Backend& backend, int count) {
  return backend.make_tensor(DType::kU8, Shape{count * kStatsBytes}, "gradient statistics");
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

GradientReducer::GradientReducer(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& compute,
                                 const ReducerConfig& config)
    : buckets_(buckets),
      communicator_(communicator),
      backend_(backend),
      compute_(compute),
      stream_(backend.create_stream()),
      config_(config),
      buffers_(buckets, communicator, backend, config),
      no_stats_(make_stats_records(backend, buckets.size())),
      stats_(make_stats_records(backend, buckets.size())),
      states_(static_cast<size_t>(buckets.size())),
      landed_(static_cast<size_t>(buckets.parameters().size())) {
  if (config.wire_digests == Digests::kOn && communicator.size() > 1) {
    digests_ = std::make_unique<WireDigests>(buckets.layout(), communicator, backend);
  }
  const std::vector<TensorStats> empty(states_.size());
  backend.upload(empty.data(), no_stats_, compute);
}

void GradientReducer::begin() {
  MANTISSA_CHECK(!open_, "[gradient_reducer.begin] the last reduction has not been finished");
  open_ = true;
  started_ = completed_ = 0;
  landed_.assign(landed_.size(), false);
  backend_.copy(no_stats_, stats_, compute_);
  if (digests_) digests_->begin(compute_);
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    state(bucket).phase = Phase::kWaiting;
    state(bucket).pending = static_cast<int>(buckets_.layout().bucket(bucket).segments.size());
  }
}

void GradientReducer::ready(const Parameter& parameter) {
  MANTISSA_CHECK(open_, "[gradient_reducer.ready] '{}' came outside of begin() ... finish()", parameter.name);
  MANTISSA_CHECK(parameter.index >= 0 && parameter.index < buckets_.parameters().size() &&
                     &buckets_.parameters()[parameter.index] == &parameter,
                 "[gradient_reducer.ready] '{}' is not a parameter of these buckets", parameter.name);
  const auto index = static_cast<size_t>(parameter.index);
  MANTISSA_CHECK(!landed_[index], "[gradient_reducer.ready] '{}' came twice in one reduction", parameter.name);
  landed_[index] = true;
  --state(buckets_.layout().bucket_of(parameter.index)).pending;
  while (started_ < buckets_.size() && state(started_).pending == 0) start_next();
}

void GradientReducer::start_next() {
  const int bucket = started_++;
  for (const Segment& segment : buckets_.layout().bucket(bucket).segments) {
    const Parameter& parameter = buckets_.parameters()[segment.parameter];
    if (!parameter.gradient_written) backend_.fill(parameter.gradient, 0.0f, compute_);
  }
  if (single_rank()) {
    record_stats(bucket, compute_);  // now: the backward pass has just written the last of it
    state(bucket).phase = Phase::kComplete;
    ++completed_;
    return;
  }
  const WirePlan::Slot& slot = plan().slots[static_cast<size_t>(bucket)];
  for (int earlier = 0; earlier <= slot.blocker; ++earlier) complete(earlier);
  stream_->wait(*compute_.record());
  state(bucket).work = start_exchange(bucket);
  state(bucket).phase = Phase::kExchanging;
}

std::unique_ptr<Work> GradientReducer::start_exchange(int bucket) {
  if (buffers_.in_place()) {
    if (digests_) digests_->sent(bucket, buckets_.gradient(bucket), *stream_);
    return communicator_.node_barrier(*stream_);
  }
  const ReductionBuffers::Bucket& buffers = buffers_[bucket];
  if (config_.rounds()) {
    backend_.run(CastArgs{.src = buckets_.gradient(bucket), .dst = buffers.send, .scale = plan().scale.before},
                 *stream_);
  }
  if (digests_) digests_->sent(bucket, buffers.send, *stream_);
  const Shape& rows = buffers.contributions.rows.shape();
  return communicator_.all_to_all(buffers.send.view(rows), buffers.receive.view(rows), *stream_);
}

void GradientReducer::progress() {
  // Sums are local, so each rank makes them when it can. Gathers are collectives: all ranks start them elsewhere.
  for (int bucket = 0; bucket < started_; ++bucket) {
    if (state(bucket).phase == Phase::kExchanging && state(bucket).work->test()) sum(bucket);
    // If this barrier is incomplete, later ones are too.
    if (state(bucket).phase == Phase::kExchanging && buffers_.in_place()) return;
    if (state(bucket).phase == Phase::kGathering) state(bucket).work->test();
  }
}

void GradientReducer::sum(int bucket) {
  const SharedRows& contributions = buffers_[bucket].contributions;
  SumContributionsArgs args{
      .contributions = contributions.rows,
      .row_stride = contributions.stride,
      .accumulate = config_.accumulation == Accumulation::kWire && config_.rounds() ? config_.wire : DType::kF32,
      .scale = plan().scale.after};
  if (buffers_.in_place() && config_.rounds()) {
    args.rounded_to = config_.wire;
    args.scale_before = plan().scale.before;
  }
  args.out = shard_of_result(bucket);
  args.record = record_of(bucket);
  args.index_offset = shard_begin(bucket);
  if (config_.sharding == Sharding::kSharded) {
    state(bucket).phase = Phase::kComplete;
    ++completed_;
  } else {
    state(bucket).phase = Phase::kSummed;
  }
  if (digests_) digests_->received(bucket, contributions, *stream_);
  backend_.run(args, *stream_);
  if (digests_ && config_.sharding == Sharding::kReplicated) {
    digests_->summed(bucket, buffers_[bucket].result, *stream_);
  }
  state(bucket).work.reset();
}

void GradientReducer::start_gather(int bucket) {
  if (state(bucket).phase == Phase::kExchanging) {
    state(bucket).work->wait();
    sum(bucket);
  }
  if (state(bucket).phase != Phase::kSummed) return;
  const Tensor& all = buffers_[bucket].result;
  const Tensor mine = shard_of(all);
  state(bucket).work = communicator_.all_gather(mine, all.view({communicator_.size(), mine.numel()}), *stream_);
  state(bucket).phase = Phase::kGathering;
}

void GradientReducer::complete(int bucket) {
  start_gather(bucket);
  if (state(bucket).phase != Phase::kGathering) return;
  state(bucket).work->wait();
  state(bucket).work.reset();
  if (digests_) digests_->gathered(bucket, buffers_[bucket].result, *stream_);
  state(bucket).phase = Phase::kComplete;
  ++completed_;
}

void GradientReducer::finish() {
  MANTISSA_CHECK(open_, "[gradient_reducer.finish] there was no begin()");
  while (started_ < buckets_.size()) start_next();
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) start_gather(bucket);  // all, before waiting for the first
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) complete(bucket);
  if (buffers_.in_place()) communicator_.node_barrier(*stream_)->wait();  // no rank reads these gradients any more
  if (!single_rank()) compute_.wait(*stream_->record());
  open_ = false;
}

Tensor GradientReducer::as_sent(const Tensor& gradient) {
  MANTISSA_CHECK(!open_, "[gradient_reducer.as_sent] the wire buffers are in use until finish()");
  if (single_rank() || !config_.rounds()) return gradient;
  Tensor sent = buffers_.scratch(gradient.shape());
  backend_.run(CastArgs{.src = gradient, .dst = sent, .scale = plan().scale.before}, compute_);
  return sent;
}

void GradientReducer::record_stats(int bucket, Stream& stream) {
  backend_.run(
      TensorStatsArgs{.x = shard_of_result(bucket), .record = record_of(bucket), .index_offset = shard_begin(bucket)},
      stream);
}

Tensor GradientReducer::record_of(int bucket) const { return stats_.slice(bucket * kStatsBytes, kStatsBytes); }

}  // namespace mantissa
