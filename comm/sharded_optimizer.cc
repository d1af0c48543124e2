#include "comm/sharded_optimizer.h"

#include <algorithm>
#include <memory>

namespace mantissa {
namespace {

constexpr uint64_t kRoundingStream = 0x5e3b7d12c49f60a8u;  // keeps rounding apart from every other use of the seed

}  // namespace

ShardedOptimizer::ShardedOptimizer(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& stream,
                                   Sharding sharding, const AdamWOptions& options)
    : buckets_(buckets),
      communicator_(communicator),
      backend_(backend),
      stream_(stream),
      gather_stream_(backend.create_stream()),
      sharding_(sharding),
      options_(options) {
  validate(options_);
  MANTISSA_CHECK(buckets.layout().ranks() == communicator.size(),
                 "[sharded_optimizer] the buckets were laid out for {} ranks, the communicator has {}",
                 buckets.layout().ranks(), communicator.size());
  MANTISSA_CHECK(sharding == Sharding::kSharded || !buckets.weights_in_common(),
                 "[sharded_optimizer] replicated ranks write all weights each, and these have one copy in common");
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    const BucketLayout::Bucket& whole = buckets_.layout().buckets()[static_cast<size_t>(bucket)];
    const bool sharded = sharding_ == Sharding::kSharded;
    const Shape shape{sharded ? whole.shard_numel : whole.numel};
    states_.push_back(
        {.segments = sharded ? buckets_.layout().shard_segments(bucket, communicator_.rank()) : whole.segments,
         .master = backend_.make_tensor(DType::kF32, shape, "master weights"),
         .m = backend_.make_tensor(options_.first_moment, shape, "first moments"),
         .v = backend_.make_tensor(DType::kF32, shape, "second moments"),
         .loaded = {}});
  }
  if (!gathers_weights()) return;
  std::vector<Tensor> weights;
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) weights.push_back(buckets_.weight(bucket));
  registration_ = communicator.register_buffers(weights);
}

Tensor ShardedOptimizer::updated_weights(int bucket) const {
  return sharding_ == Sharding::kSharded ? buckets_.weight_shard(bucket, communicator_.rank())
                                         : buckets_.weight(bucket);
}

AdamWArgs ShardedOptimizer::weight_arguments(int bucket, const Segment& segment, const Tensor& control) const {
  return {.master = states_[static_cast<size_t>(bucket)].master.slice(segment.offset, segment.count),
          .weight = updated_weights(bucket).slice(segment.offset, segment.count),
          .control = control,
          .rounding = options_.weight_rounding,
          .key = options_.seed ^ kRoundingStream,
          .parameter = static_cast<uint32_t>(segment.parameter),
          .first_element = segment.begin};
}

void ShardedOptimizer::remake_weights() {
  const UpdateControl number{.update = static_cast<uint32_t>(applied_steps_)};
  const Tensor control = backend_.make_record<UpdateControl>("update number");
  backend_.upload(&number, control, stream_);
  share_weights([&](int bucket) {
    for (const Segment& segment : states_[static_cast<size_t>(bucket)].segments) {
      backend_.adamw(weight_arguments(bucket, segment, control), stream_);
    }
  });
  stream_.synchronize();  // it reads the number
}

void ShardedOptimizer::share_weights(const std::function<void(int bucket)>& compute) {
  std::vector<std::unique_ptr<Work>> gathers;
  if (buckets_.weights_in_common()) communicator_.meet(stream_)->wait();  // nobody computes with the old ones any more
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    compute(bucket);
    if (!gathers_weights()) continue;
    const Tensor mine = updated_weights(bucket);
    const Shape rows{communicator_.size(), mine.numel()};
    gather_stream_->wait(*stream_.record());
    gathers.push_back(communicator_.all_gather(mine, buckets_.weight(bucket).view(rows), *gather_stream_));
    for (const auto& gather : gathers) gather->test();  // keeps them moving while the next bucket is computed
  }
  if (buckets_.weights_in_common()) communicator_.meet(stream_)->wait();  // all have written theirs
  for (const auto& gather : gathers) gather->wait();
  if (!gathers.empty()) stream_.wait(*gather_stream_->record());
  buckets_.bump_versions();
}

void ShardedOptimizer::initialize(uint64_t seed) {
  constexpr int64_t kChunkElements = int64_t{1} << 20;
  std::vector<float> values;
  for (const BucketState& state : states_) {
    for (const Segment& segment : state.segments) {
      const Parameter& parameter = buckets_.parameters()[segment.parameter];
      for (int64_t done = 0; done < segment.count; done += kChunkElements) {
        const int64_t count = std::min(kChunkElements, segment.count - done);
        values.resize(static_cast<size_t>(count));
        initial_values(parameter, seed, segment.begin + done, count, values.data());
        backend_.upload(values.data(), state.master.slice(segment.offset + done, count), stream_);
      }
    }
    backend_.fill(state.m, 0.0f, stream_);
    backend_.fill(state.v, 0.0f, stream_);
  }
  applied_steps_ = 0;
  remake_weights();
}

void ShardedOptimizer::step(const GradientReducer& reducer, const Tensor& control) {
  MANTISSA_CHECK(reducer.config().sharding == sharding_,
                 "[sharded_optimizer.step] gradients and optimizer must be both sharded or both replicated");
  share_weights([&](int bucket) {
    const BucketState& state = states_[static_cast<size_t>(bucket)];
    const Tensor gradient = reducer.result(bucket);
    for (const Segment& segment : state.segments) {
      const bool decays = buckets_.parameters()[segment.parameter].decay == WeightDecay::kYes;
      AdamWArgs args = weight_arguments(bucket, segment, control);
      args.gradient = gradient.slice(segment.offset, segment.count);
      args.m = state.m.slice(segment.offset, segment.count);
      args.v = state.v.slice(segment.offset, segment.count);
      args.beta1 = options_.beta1;
      args.beta2 = options_.beta2;
      args.epsilon = options_.epsilon;
      args.weight_decay = decays ? options_.weight_decay : 0.0f;
      backend_.adamw(args, stream_);
    }
  });
}

size_t ShardedOptimizer::master_bytes() const {
  size_t bytes = 0;
  for (const BucketState& state : states_) bytes += state.master.size_bytes();
  return bytes;
}

size_t ShardedOptimizer::moment_bytes() const {
  size_t bytes = 0;
  for (const BucketState& state : states_) bytes += state.m.size_bytes() + state.v.size_bytes();
  return bytes;
}

}  // namespace mantissa
