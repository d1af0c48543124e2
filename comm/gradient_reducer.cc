#include "comm/gradient_reducer.h"

#include "comm/sent_memory.h"

namespace mantissa {
namespace {

constexpr int64_t kStatsBytes = sizeof(TensorStats);

Tensor make_stats_records(Backend& backend, int count) {
  return backend.make_tensor(DType::kU8, Shape{count * kStatsBytes}, "gradient statistics");
}

}  // namespace

GradientReducer::GradientReducer(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& compute,
                                 const ReducerConfig& config)
    : buckets_(buckets),
      communicator_(communicator),
      backend_(backend),
      compute_(compute),
      stream_(backend.create_stream()),
      config_(config),
      plan_(plan_wire(buckets.layout(), config)),
      no_stats_(make_stats_records(backend, buckets.size())),
      stats_(make_stats_records(backend, buckets.size())),
      states_(static_cast<size_t>(buckets.size())),
      landed_(static_cast<size_t>(buckets.parameters().size())) {
  MANTISSA_CHECK(buckets.layout().ranks() == communicator.size(),
                 "[gradient_reducer] the buckets were laid out for {} ranks, the communicator has {}",
                 buckets.layout().ranks(), communicator.size());
  const std::vector<TensorStats> empty(states_.size());
  backend.upload(empty.data(), no_stats_, compute);
  constexpr const char* kWireBuffers = "gradient wire buffers";
  if (config.wire != DType::kF32) window_ = allocate_sent(communicator, backend, plan_.window_bytes, kWireBuffers);
  if (window_ == nullptr && plan_.window_bytes > 0) window_ = backend.allocate(plan_.window_bytes, kWireBuffers);
  for (int index = 0; index < buckets_.size(); ++index) {
    State& state = states_[static_cast<size_t>(index)];
    const Tensor& gradient = buckets_.gradient(index);
    if (alone()) {
      state.result = gradient;
      continue;
    }
    const WirePlan::Slot& slot = plan_.slots[static_cast<size_t>(index)];
    const Shape shape = gradient.shape();
    state.send = slot.send_bytes == 0 ? gradient : Tensor(window_, config_.wire, shape, slot.offset_bytes);
    state.receive = Tensor(window_, config_.wire, shape, slot.offset_bytes + slot.send_bytes);
    const bool sharded = config_.sharding == Sharding::kSharded;
    const int64_t numel = sharded ? gradient.numel() / communicator_.size() : gradient.numel();
    state.result = backend.make_tensor(DType::kF32, Shape{numel}, "summed gradient");
  }
  if (window_) registration_ = communicator.register_buffers(exchanged_buffers());
}

std::vector<Tensor> GradientReducer::exchanged_buffers() const {
  std::vector<Tensor> buffers = {Tensor(window_, DType::kU8, Shape{static_cast<int64_t>(window_->bytes())})};
  if (config_.wire != DType::kF32) return buffers;
  for (const State& state : states_) {
    buffers.push_back(state.send);
    if (config_.sharding == Sharding::kReplicated) buffers.push_back(state.result);
  }
  return buffers;
}

void GradientReducer::begin() {
  MANTISSA_CHECK(!open_, "[gradient_reducer.begin] the last reduction has not been finished");
  open_ = true;
  started_ = completed_ = 0;
  landed_.assign(landed_.size(), false);
  backend_.copy(no_stats_, stats_, compute_);
  for (size_t index = 0; index < states_.size(); ++index) {
    states_[index].phase = Phase::kWaiting;
    states_[index].pending = static_cast<int>(buckets_.layout().buckets()[index].segments.size());
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
  --states_[static_cast<size_t>(buckets_.layout().bucket_of(parameter.index))].pending;
  while (started_ < buckets_.size() && states_[static_cast<size_t>(started_)].pending == 0) start_next();
}

void GradientReducer::start_next() {
  const int bucket = started_;
  State& state = states_[static_cast<size_t>(bucket)];
  for (const Segment& segment : buckets_.layout().buckets()[static_cast<size_t>(bucket)].segments) {
    const Parameter& parameter = buckets_.parameters()[segment.parameter];
    if (!parameter.gradient_written) backend_.fill(parameter.gradient, 0.0f, compute_);
  }
  ++started_;
  if (alone()) {
    examine(bucket, compute_);  // now: the backward pass has just written the last of it
    state.phase = Phase::kComplete;
    ++completed_;
    return;
  }
  const WirePlan::Slot& slot = plan_.slots[static_cast<size_t>(bucket)];
  for (int earlier = 0; earlier <= slot.blocker; ++earlier) complete(earlier);

  stream_->wait(*compute_.record());
  if (slot.send_bytes > 0) {
    backend_.cast({.src = buckets_.gradient(bucket), .dst = state.send, .scale = plan_.scale.before}, *stream_);
  }
  const Shape rows{communicator_.size(), state.send.numel() / communicator_.size()};
  state.work = communicator_.all_to_all(state.send.view(rows), state.receive.view(rows), *stream_);
  state.phase = Phase::kScattering;
}

void GradientReducer::progress() {
  // Sums are local, so their moment is free. Gathers are collectives: all ranks must start them at the same points.
  for (int bucket = 0; bucket < started_; ++bucket) {
    State& state = states_[static_cast<size_t>(bucket)];
    if (state.phase == Phase::kScattering && state.work->test()) sum(bucket);
    if (state.phase == Phase::kGathering) state.work->test();
  }
}

void GradientReducer::sum(int bucket) {
  State& state = states_[static_cast<size_t>(bucket)];
  const int ranks = communicator_.size();
  const int64_t shard = state.receive.numel() / ranks;
  SumContributionsArgs args{.contributions = state.receive.view(Shape{ranks, shard}),
                            .accumulate = config_.accumulation == Accumulation::kFp32 ? DType::kF32 : config_.wire,
                            .scale = plan_.scale.after};
  // What is stored is the result already, but for a replicated 16-bit sum: complete() scales that back in fp32.
  if (config_.sharding == Sharding::kSharded || config_.wire == DType::kF32) {
    args.record = record_of(bucket);
    args.index_offset = shard_begin(bucket);
  }
  if (config_.sharding == Sharding::kSharded) {
    args.out = state.result;
    state.phase = Phase::kComplete;
    ++completed_;
  } else {
    // What all ranks will hold is the sum in the wire dtype; the send buffer has served and takes it.
    const Tensor& target = config_.wire == DType::kF32 ? state.result : state.send;
    args.out = target.slice(communicator_.rank() * shard, shard);
    args.scale *= plan_.scale.gather;
    state.phase = Phase::kSummed;
  }
  backend_.sum_contributions(args, *stream_);
  state.work.reset();
}

void GradientReducer::start_gather(int bucket) {
  State& state = states_[static_cast<size_t>(bucket)];
  const int ranks = communicator_.size();
  const Tensor& target = config_.wire == DType::kF32 ? state.result : state.send;
  const int64_t shard = target.numel() / ranks;
  state.work = communicator_.all_gather(target.slice(communicator_.rank() * shard, shard),
                                        target.view(Shape{ranks, shard}), *stream_);
  state.phase = Phase::kGathering;
}

void GradientReducer::examine(int bucket, Stream& stream) {
  backend_.tensor_stats(
      {.x = shard_of_result(bucket), .record = record_of(bucket), .index_offset = shard_begin(bucket)}, stream);
}

void GradientReducer::complete(int bucket) {
  State& state = states_[static_cast<size_t>(bucket)];
  if (state.phase == Phase::kScattering) {
    state.work->wait();
    sum(bucket);
  }
  if (state.phase == Phase::kSummed) start_gather(bucket);
  if (state.phase == Phase::kGathering) {
    state.work->wait();
    state.work.reset();
    if (config_.wire != DType::kF32) {
      backend_.cast({.src = state.send, .dst = state.result, .scale = 1.0f / plan_.scale.gather}, *stream_);
      examine(bucket, *stream_);
    }
    state.phase = Phase::kComplete;
    ++completed_;
  }
}

void GradientReducer::finish() {
  MANTISSA_CHECK(open_, "[gradient_reducer.finish] there was no begin()");
  while (started_ < buckets_.size()) start_next();
  // All gathers are under way before the first is waited for.
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    State& state = states_[static_cast<size_t>(bucket)];
    if (state.phase == Phase::kScattering) {
      state.work->wait();
      sum(bucket);
    }
    if (state.phase == Phase::kSummed) start_gather(bucket);
  }
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) complete(bucket);
  if (!alone()) compute_.wait(*stream_->record());
  open_ = false;
}

void GradientReducer::check_finished(const char* caller) const {
  MANTISSA_CHECK(!open_ && completed_ == buckets_.size(), "[gradient_reducer.{}] asked before finish()", caller);
}

const Tensor& GradientReducer::result(int bucket) const {
  check_finished("result");
  return states_.at(static_cast<size_t>(bucket)).result;
}

Tensor GradientReducer::result_shard(int bucket) const {
  check_finished("result_shard");
  return shard_of_result(bucket);
}

const Tensor& GradientReducer::stats() const {
  check_finished("stats");
  return stats_;
}

Tensor GradientReducer::shard_of_result(int bucket) const {
  const Tensor& whole = states_.at(static_cast<size_t>(bucket)).result;
  if (config_.sharding == Sharding::kSharded || alone()) return whole;
  const int64_t shard = whole.numel() / communicator_.size();
  return whole.slice(communicator_.rank() * shard, shard);
}

int64_t GradientReducer::shard_begin(int bucket) const {
  const BucketLayout::Bucket& place = buckets_.layout().buckets()[static_cast<size_t>(bucket)];
  return place.flat_begin + communicator_.rank() * place.shard_numel;
}

Tensor GradientReducer::record_of(int bucket) const { return stats_.slice(bucket * kStatsBytes, kStatsBytes); }

Tensor GradientReducer::as_sent(const Tensor& gradient) {
  MANTISSA_CHECK(!open_, "[gradient_reducer.as_sent] the wire buffers are in use until finish()");
  if (alone() || config_.wire == DType::kF32) return gradient;
  const Tensor sent(window_, config_.wire, gradient.shape());
  backend_.cast({.src = gradient, .dst = sent, .scale = plan_.scale.before}, compute_);
  return sent;
}

size_t GradientReducer::buffer_bytes() const {
  size_t bytes = window_ ? window_->bytes() : 0;
  if (alone()) return bytes;
  for (const State& state : states_) bytes += state.result.size_bytes();
  return bytes;
}

}  // namespace mantissa
