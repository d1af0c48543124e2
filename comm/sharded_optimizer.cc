#include "comm/sharded_optimizer.h"

#include <algorithm>
#include <memory>

#include "core/quant/dynamic_map.h"

namespace mantissa {
namespace {

// Keep the rounding of weights and that of second moments apart from each other and from every other use of the seed.
constexpr uint64_t kRoundingStream = 0x5e3b7d12c49f60a8u, kMomentStream = 0xa91c04e7d2586b3fu;

size_t bytes_of(const Tensor& tensor) { return tensor.defined() ? tensor.size_bytes() : 0; }

// Moments in blocks need a layout that keeps blocks whole, and no other may have it.
void require_alignment(const BucketLayout::Bucket& bucket, const ParameterSet& parameters,
                       const AdamWOptions& options) {
  const BucketLayout::AlignmentOf alignment_of = state_alignment(options);
  for (const Segment& segment : bucket.segments) {
    const Parameter& parameter = parameters[segment.parameter];
    const int64_t needed = alignment_of ? alignment_of(parameter) : BucketLayout::kAlignmentElements;
    MANTISSA_CHECK(bucket.alignment == needed,
                   "[sharded_optimizer] the state of '{}' needs a layout in units of {} elements, got {}: lay buckets "
                   "out with state_alignment()",
                   parameter.name, needed, bucket.alignment);
  }
}

StateTensors make_state(const StateFormat& format, int64_t numel, Backend& backend) {
  const auto make = [&](bool exists, DType dtype, int64_t count, const char* what) {
    return exists ? backend.make_tensor(dtype, {count}, what) : Tensor();
  };
  const int64_t blocks = numel / kDynamicBlock;
  return {.master = make(format.has_master, DType::kF32, numel, "master weights"),
          .weight = {},
          .compensation = make(format.has_compensation, DType::kBF16, numel, "compensations of weights"),
          .m = backend.make_tensor(format.m, {numel}, "first moments"),
          .v = backend.make_tensor(format.v, {numel}, "second moments"),
          .m_absmax = make(format.m == DType::kU8, DType::kF32, blocks, "scales of first moments"),
          .v_absmax = make(format.v == DType::kU8, DType::kF32, blocks, "scales of second moments")};
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& stream,
                                   Sharding sharding, const AdamWOptions& options, const CodedGatherOptions& coded)
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
    require_alignment(whole, buckets_.parameters(), options_);
    const bool sharded = sharding_ == Sharding::kSharded;
    const int64_t numel = sharded ? whole.shard_numel : whole.numel;
    states_.push_back(
        {.segments = sharded ? buckets_.layout().shard_segments(bucket, communicator_.rank()) : whole.segments,
         .own = make_state(state_format(whole, options_), numel, backend_),
         .loaded = {},
         .m_blocks = {},
         .v_blocks = {}});
  }
  if (!gathers_weights()) return;
  std::vector<Tensor> sent;
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) sent.push_back(buckets_.weight(bucket));
  if (!coded.weights.empty()) {
    coded_ = std::make_unique<CodedGather>(buckets, communicator, backend, stream, *gather_stream_, coded.weights,
                                           *coded.scales);
    for (const Tensor& rows : coded_->buffers()) sent.push_back(rows);
  }
  registration_ = communicator.register_buffers(sent);
}

Tensor ShardedOptimizer::updated_weights(int bucket) const {
  if (has_codes(bucket)) return coded_->shard(bucket);
  return sharding_ == Sharding::kSharded ? buckets_.weight_shard(bucket, communicator_.rank())
                                         : buckets_.weight(bucket);
}

StateTensors ShardedOptimizer::state_of(int bucket) const {
  StateTensors state = states_[static_cast<size_t>(bucket)].own;
  if (keeps_masters()) return state;
  const Tensor weights = updated_weights(bucket);
  (weights.dtype() == DType::kF32 ? state.master : state.weight) = weights;
  return state;
}

AdamWArgs ShardedOptimizer::weight_arguments(int bucket, const Segment& segment, const Tensor& control) const {
  const StateTensors state = state_of(bucket).slice(segment.offset, segment.count);
  AdamWArgs args{.master = state.master,
                 .weight = state.weight,
                 .compensation = state.compensation,
                 .control = control,
                 .rounding = options_.weight_rounding,
                 .key = options_.seed ^ kRoundingStream,
                 .moment_key = options_.seed ^ kMomentStream,
                 .parameter = static_cast<uint32_t>(segment.parameter),
                 .first_element = segment.begin};
  if (keeps_masters()) args.weight = updated_weights(bucket).slice(segment.offset, segment.count);
  if (options_.master == MasterWeights::kNoneStochastic) args.rounding = WeightRounding::kStochastic;
  if (options_.master == MasterWeights::kKahan) args.rounding = WeightRounding::kNearest;
  return args;
}

void ShardedOptimizer::remake_weights() {
  const UpdateControl number{.update = static_cast<uint32_t>(applied_steps_)};
  const Tensor control = backend_.make_record<UpdateControl>("update number");
  backend_.upload(&number, control, stream_);
  // As they are: what scales there are is not known to be those of the next pass.
  share_weights(Form::kStored, [&](int bucket) {
    if (!keeps_masters()) return;
    for (const Segment& segment : states_[static_cast<size_t>(bucket)].segments) {
      backend_.run(weight_arguments(bucket, segment, control), stream_);
    }
  });
  stream_.synchronize();  // it reads the number
}

void ShardedOptimizer::await_readers_of_weights() {
  if (!keeps_masters() && buckets_.weights_in_common()) communicator_.meet(stream_)->wait();
}

std::unique_ptr<Work> ShardedOptimizer::gather_stored(int bucket) {
  const Tensor mine = buckets_.weight_shard(bucket, communicator_.rank());
  if (has_codes(bucket)) backend_.copy(coded_->shard(bucket), mine, stream_);
  const Shape rows{communicator_.size(), mine.numel()};
  gather_stream_->wait(*stream_.record());
  return communicator_.all_gather(mine, buckets_.weight(bucket).view(rows), *gather_stream_);
}

void ShardedOptimizer::share_weights(Form form, const std::function<void(int bucket)>& compute) {
  std::vector<std::unique_ptr<Work>> gathers;
  if (buckets_.weights_in_common()) communicator_.meet(stream_)->wait();  // nobody computes with the old ones any more
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    compute(bucket);
    if (!gathers_weights()) continue;
    if (form == Form::kCodes && has_codes(bucket)) {
      coded_->send(bucket);
    } else {
      gathers.push_back(gather_stored(bucket));
    }
    // Keeps them moving while the next bucket is computed.
    for (const auto& gather : gathers) gather->test();
    if (coded_) coded_->progress();
  }
  if (buckets_.weights_in_common()) communicator_.meet(stream_)->wait();  // all have written theirs
  if (coded_) coded_->finish();
  for (const auto& gather : gathers) gather->wait();
  if (!gathers.empty()) stream_.wait(*gather_stream_->record());
  buckets_.bump_versions();
}

void ShardedOptimizer::initialize(uint64_t seed) {
  constexpr int64_t kChunkElements = int64_t{1} << 20;  // whole blocks
  await_readers_of_weights();
  std::vector<float> values;
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    const StateTensors state = state_of(bucket);
    for (const Segment& segment : states_[static_cast<size_t>(bucket)].segments) {
      const Parameter& parameter = buckets_.parameters()[segment.parameter];
      for (int64_t done = 0; done < segment.count; done += kChunkElements) {
        const int64_t count = std::min(kChunkElements, segment.count - done);
        values.resize(static_cast<size_t>(count));
        initial_values(parameter, seed, segment.begin + done, count, values.data());
        upload_weights(values, {}, 0, state.slice(segment.offset + done, count), backend_, stream_);
      }
    }
    upload_moment({}, 0, DynamicMap::kSigned, state.m, state.m_absmax, backend_, stream_);
    upload_moment({}, 0, DynamicMap::kUnsigned, state.v, state.v_absmax, backend_, stream_);
  }
  applied_steps_ = 0;
  remake_weights();
}

void ShardedOptimizer::step(const GradientReducer& reducer, const Tensor& control) {
  MANTISSA_CHECK(reducer.config().sharding == sharding_,
                 "[sharded_optimizer.step] gradients and optimizer must be both sharded or both replicated");
  share_weights(coded_ && coded_->ready() ? Form::kCodes : Form::kStored, [&](int bucket) {
    const StateTensors all = state_of(bucket);
    const Tensor gradient = reducer.result(bucket);
    for (const Segment& segment : states_[static_cast<size_t>(bucket)].segments) {
      const bool decays = buckets_.parameters()[segment.parameter].decay == WeightDecay::kYes;
      const StateTensors state = all.slice(segment.offset, segment.count);
      AdamWArgs args = weight_arguments(bucket, segment, control);
      args.gradient = gradient.slice(segment.offset, segment.count);
      args.m = state.m;
      args.v = state.v;
      args.m_absmax = state.m_absmax;
      args.v_absmax = state.v_absmax;
      args.beta1 = options_.beta1;
      args.beta2 = options_.beta2;
      args.epsilon = options_.epsilon;
      args.weight_decay = decays ? options_.weight_decay : 0.0f;
      backend_.run(args, stream_);
    }
  });
}

void ShardedOptimizer::restore_weights() {
  if (coded_) share_weights(Form::kStored, [](int) {});
}

size_t ShardedOptimizer::master_bytes() const {
  size_t bytes = 0;
  for (const BucketState& state : states_) bytes += bytes_of(state.own.master) + bytes_of(state.own.compensation);
  return bytes;
}

size_t ShardedOptimizer::moment_bytes() const {
  size_t bytes = 0;
  for (const BucketState& state : states_) {
    bytes += bytes_of(state.own.m) + bytes_of(state.own.v);
    bytes += bytes_of(state.own.m_absmax) + bytes_of(state.own.v_absmax);
  }
  return bytes;
}

}  // namespace mantissa
