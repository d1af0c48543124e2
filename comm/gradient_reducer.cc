#include "comm/gradient_reducer.h"

#include "core/kernels/reduction/args.h"

namespace mantissa {
namespace {

// Several collectives as one.
class AllWork final : public Work {
 public:
  void add(std::unique_ptr<Work> work) { works_.push_back(std::move(work)); }
  bool test() override {
    bool all = true;
    for (const auto& work : works_) all = work->test() && all;
    return all;
  }
  void wait() override {
    for (const auto& work : works_) work->wait();
  }

 private:
  std::vector<std::unique_ptr<Work>> works_;
};

constexpr int64_t kStatsBytes = sizeof(TensorStats);

int64_t stats_records(const BucketLayout& layout) { return std::ssize(layout.buckets()) * layout.units_per_shard(); }

Tensor make_stats_records(Backend& backend, int64_t count) {
  return backend.make_tensor(DType::kU8, Shape{count * kStatsBytes}, "gradient statistics");
}

}  // namespace

GradientReducer::GradientReducer(FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend, Stream& compute,
                                 const ReducerConfig& config)
    : buckets_(buckets),
      groups_(groups),
      communicator_(groups.all()),
      backend_(backend),
      compute_(compute),
      stream_(backend.create_stream()),
      config_(config),
      buffers_(buckets, groups, backend, config),
      no_stats_(make_stats_records(backend, stats_records(buckets.layout()))),
      stats_(make_stats_records(backend, stats_records(buckets.layout()))),
      states_(static_cast<size_t>(buckets.size())),
      landed_(static_cast<size_t>(buckets.parameters().size())) {
  if (config.wire_digests == Digests::kOn && communicator_.size() > 1) {
    digests_ = std::make_unique<WireDigests>(buckets.layout(), groups, backend);
  }
  const std::vector<TensorStats> empty(static_cast<size_t>(stats_records(buckets.layout())));
  backend.upload(empty.data(), no_stats_, compute);
}

void GradientReducer::begin(const Tensor& step, const Tensor& unit) {
  MANTISSA_CHECK(!open_, "[gradient_reducer.begin] the last reduction has not been finished");
  buffers_.rounding().begin(step, unit);
  open_ = true;
  started_ = completed_ = 0;
  lane_ = lanes().begin;
  last_lane_ = lanes().end;
  backend_.copy(no_stats_, stats_, compute_);
  if (digests_) digests_->begin(compute_);
  await_gradients();
}

void GradientReducer::await_gradients() {
  landed_.assign(landed_.size(), false);
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    state(bucket).phase = Phase::kWaiting;
    state(bucket).pending = static_cast<int>(buckets_.layout().bucket(bucket).segments.size());
  }
}

void GradientReducer::next_lane() {
  MANTISSA_CHECK(open_ && !on_last_lane(), "[gradient_reducer.next_lane] there was no begin(), or no further lane");
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (state(bucket).pending > 0) add_lane(bucket);
  }
  ++lane_;
  await_gradients();
  buckets_.parameters().forget_gradients();
}

void GradientReducer::add_lane(int bucket) {
  for (const Segment& segment : buckets_.layout().bucket(bucket).segments) {
    const Parameter& parameter = buckets_.parameters()[segment.parameter];
    if (!parameter.gradient_written) backend_.fill(parameter.gradient, 0.0f, compute_);
  }
  if (LaneSums* const sums = buffers_.lane_sums()) sums->add(bucket, lane_, compute_);
}

void GradientReducer::ready(const Parameter& parameter) {
  MANTISSA_CHECK(open_, "[gradient_reducer.ready] '{}' came outside of begin() ... finish()", parameter.name);
  MANTISSA_CHECK(parameter.index >= 0 && parameter.index < buckets_.parameters().size() &&
                     &buckets_.parameters()[parameter.index] == &parameter,
                 "[gradient_reducer.ready] '{}' is not a parameter of these buckets", parameter.name);
  const auto index = static_cast<size_t>(parameter.index);
  MANTISSA_CHECK(!landed_[index], "[gradient_reducer.ready] '{}' came twice in one reduction", parameter.name);
  landed_[index] = true;
  const int bucket = buckets_.layout().bucket_of(parameter.index);
  const bool is_complete = --state(bucket).pending == 0;
  if (on_last_lane()) {
    while (started_ < buckets_.size() && state(started_).pending == 0) start_next();
  } else if (is_complete) {
    add_lane(bucket);
  }
}

void GradientReducer::start_next() {
  const int bucket = started_++;
  add_lane(bucket);
  if (single_lane()) {
    record_stats(bucket, compute_);  // now: the backward pass has just written the last of it
    state(bucket).phase = Phase::kComplete;
    ++completed_;
    return;
  }
  const WirePlan::Slot& slot = plan().slots[static_cast<size_t>(bucket)];
  for (int earlier = 0; earlier <= slot.blocker; ++earlier) complete(earlier);
  stream_->wait(*compute_.record());
  state(bucket).stage = 0;
  start_stage(bucket);
  // Later stages of earlier buckets, whose messages have had time to arrive.
  for (size_t stage = 1; stage < stages(); ++stage) {
    const int earlier = bucket - static_cast<int>(stage) * kStageLag;
    if (earlier >= 0) reach_stage(earlier, stage);
  }
}

void GradientReducer::start_stage(int bucket) {
  const size_t index = state(bucket).stage;
  const ReductionBuffers::Stage& stage = buffers_[bucket].stages[index];
  Communicator& group = *groups_.stages()[index].group;
  const bool in_place = index == 0 && buffers_.in_place();
  const int64_t n = stage.send.dim(1);
  if (index == 0 && buffers_.rounds_contributions() && !in_place) {
    buffers_.rounding().round(bucket, lane_, stage.send.view({group.size(), n / group.size()}), *stream_);
  }
  const int64_t slots = stage.contributions.rows.dim(0) / group.size();
  if (digests_) digests_->sent(bucket, index, stage.send.rows(0, slots), *stream_);
  state(bucket).phase = Phase::kExchanging;
  if (in_place) {
    state(bucket).work = single_rank() ? std::make_unique<NoWork>() : group.node_barrier(*stream_);
    return;
  }
  auto works = std::make_unique<AllWork>();
  for (int64_t slot = 0; slot < slots; ++slot) {
    const auto rows = [&](const Tensor& all) { return all.slice(slot * n, n).view({group.size(), n / group.size()}); };
    works->add(group.all_to_all(rows(stage.send), rows(stage.receive), *stream_));
  }
  state(bucket).work = std::move(works);
}

void GradientReducer::reach_stage(int bucket, size_t stage) {
  while (state(bucket).stage < stage) {
    if (state(bucket).phase == Phase::kExchanging) {
      state(bucket).work->wait();
      sum(bucket);
    }
    ++state(bucket).stage;
    start_stage(bucket);
  }
}

void GradientReducer::progress() {
  // Sums are local, so each rank makes them when it can. Collectives start elsewhere, in the same order on all ranks.
  for (int bucket = 0; bucket < started_; ++bucket) {
    if (state(bucket).phase == Phase::kExchanging && state(bucket).work->test()) sum(bucket);
    // If this barrier is incomplete, later ones are too.
    if (state(bucket).phase == Phase::kExchanging && state(bucket).stage == 0 && buffers_.in_place()) return;
    if (state(bucket).phase == Phase::kGathering) state(bucket).work->test();
  }
}

void GradientReducer::sum(int bucket) {
  const size_t index = state(bucket).stage;
  const bool is_last = index + 1 == stages();
  const ReductionBuffers::Stage& stage = buffers_[bucket].stages[index];
  SumContributionsArgs args{
      .contributions = stage.contributions.rows,
      .out = stage.out,
      .row_stride = stage.contributions.stride,
      .slot_stride = stage.slot_stride,
      .group = stage.lanes,
      .accumulate = config_.accumulation == Accumulation::kWire && config_.rounds() ? config_.wire : DType::kF32};
  if (index == 0 && buffers_.in_place() && buffers_.rounds_contributions()) {
    args.rounded_to = config_.wire;
    args.scale_before = plan().scale.before;
  }
  if (digests_) digests_->received(bucket, index, stage.contributions, stage.slot_stride, *stream_);
  if (is_last) {
    args.scale = plan().scale.after;
    args.record = record_of(bucket);
    args.index_offset = shard_begin(bucket);
  }
  backend_.run(args, *stream_);
  state(bucket).work.reset();
  state(bucket).phase = Phase::kSummed;
  if (!is_last) return;
  if (config_.sharding == Sharding::kSharded || single_rank()) {
    state(bucket).phase = Phase::kComplete;
    ++completed_;
  } else if (digests_) {
    digests_->summed(bucket, buffers_[bucket].result, *stream_);
  }
}

void GradientReducer::start_gather(int bucket) {
  reach_stage(bucket, stages() - 1);
  if (state(bucket).phase == Phase::kExchanging) {
    state(bucket).work->wait();
    sum(bucket);
  }
  if (state(bucket).phase != Phase::kSummed) return;
  state(bucket).work = groups_.all_gather(buffers_[bucket].result, *stream_);
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
  MANTISSA_CHECK(open_ && on_last_lane(), "[gradient_reducer.finish] there was no begin(), or a lane is missing");
  while (started_ < buckets_.size()) start_next();
  for (size_t stage = 1; stage < stages(); ++stage) {  // of all, before waiting for the first
    for (int bucket = 0; bucket < buckets_.size() && !single_lane(); ++bucket) reach_stage(bucket, stage);
  }
  for (int bucket = 0; bucket < buckets_.size() && !single_lane(); ++bucket) start_gather(bucket);
  for (int bucket = 0; bucket < buckets_.size() && !single_lane(); ++bucket) complete(bucket);
  // The other ranks no longer read these contributions.
  if (buffers_.in_place() && !single_rank()) groups_.stages()[0].group->node_barrier(*stream_)->wait();
  if (!single_lane()) compute_.wait(*stream_->record());
  open_ = false;
}

std::vector<Tensor> GradientReducer::as_sent(const Parameter& parameter) {
  MANTISSA_CHECK(!open_, "[gradient_reducer.as_sent] the wire buffers are in use until finish()");
  std::vector<Tensor> sent;
  if (const LaneSums* const sums = buffers_.lane_sums()) {
    const int bucket = buckets_.layout().bucket_of(parameter.index);
    const Tensor& nodes = sums->nodes(bucket);
    const int64_t offset =
        buckets_.layout().flat_index(parameter.index, 0) - buckets_.layout().bucket(bucket).flat_begin;
    for (int slot = 0; slot < sums->used_slots(); ++slot) {
      sent.push_back(nodes.slice(slot * nodes.dim(1) + offset, parameter.numel()));
    }
    return sent;
  }
  sent.push_back(parameter.gradient);
  if (single_lane() || !config_.rounds()) return sent;
  const Tensor rounded = buffers_.scratch({round_up(parameter.numel(), kCodeBlock)});
  buffers_.rounding().round_parameter(parameter.index, lane_, rounded, compute_);
  sent[0] = rounded.slice(0, parameter.numel()).view(parameter.gradient.shape());
  return sent;
}

void GradientReducer::record_stats(int bucket, Stream& stream) {
  backend_.run(
      TensorStatsArgs{.x = shard_of_result(bucket), .record = record_of(bucket), .index_offset = shard_begin(bucket)},
      stream);
}

Tensor GradientReducer::record_of(int bucket) const {
  const int64_t bytes = buckets_.layout().units_per_shard() * kStatsBytes;
  return stats_.slice(bucket * bytes, bytes);
}

}  // namespace mantissa
