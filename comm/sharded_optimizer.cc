#include "comm/sharded_optimizer.h"
#include "core/kernels/optimizer/args.h"

namespace mantissa {
namespace {

// Random streams of weight rounding and of second moments, apart from each other and from other uses of the seed.
constexpr uint64_t kRoundingStream = 0x5e3b7d12c49f60a8u, kMomentStream = 0xa91c04e7d2586b3fu;

constexpr int32_t kNoFault = 0, kFault = 1;  // of the optimizer state; static, since uploads read them later

size_t bytes_of(const Tensor& tensor) { return tensor.defined() ? tensor.size_bytes() : 0; }

// Moments in blocks need a layout that keeps blocks whole. Other moments need the default layout.
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
  return {.master = make(format.has_master, format.master, numel, "master weights"),
          .compensation = make(format.has_compensation, DType::kBF16, numel, "compensations of weights"),
          .m = backend.make_tensor(format.m, {numel}, "first moments"),
          .v = backend.make_tensor(format.v, {numel}, "second moments"),
          .m_absmax = make(format.m == DType::kU8, DType::kF32, blocks, "scales of first moments"),
          .v_absmax = make(format.v == DType::kU8, DType::kF32, blocks, "scales of second moments")};
}

// Sizes of one piece's values must agree, and codes start with a block.
void require_sizes(const StateValues& values, const Parameter& parameter) {
  const size_t count = values.size();
  MANTISSA_CHECK(values.compensation.empty() || values.compensation.size() == count,
                 "[sharded_optimizer.load] '{}' has {} weights, but {} compensations", parameter.name, count,
                 values.compensation.size());
  for (const MomentValues& moment : {values.m, values.v}) {
    MANTISSA_CHECK(moment.empty() || moment.size() == count,
                   "[sharded_optimizer.load] '{}' has {} weights, but {} values of a moment", parameter.name, count,
                   moment.size());
    if (moment.codes.empty()) continue;
    const size_t blocks = divide_up<size_t>(count, kDynamicBlock);
    require<CheckpointError>(moment.absmax.size() == blocks && values.begin % kDynamicBlock == 0,
                             "optimizer state: {} codes of '{}' from element {} with {} scales; expected whole blocks "
                             "of {} elements with {}",
                             count, parameter.name, values.begin, moment.absmax.size(), kDynamicBlock, blocks);
  }
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend, Stream& stream,
                                   Sharding sharding, const AdamWOptions& options, const CodedGatherOptions& coded,
                                   Digests digests)
    : buckets_(buckets),
      groups_(groups),
      communicator_(groups.all()),
      backend_(backend),
      stream_(stream),
      gather_stream_(backend.create_stream()),
      sharding_(sharding),
      options_(options),
      faults_(backend.make_tensor(DType::kI32, {1}, "faults of the optimizer state")) {
  validate(options_);
  backend_.upload(&kNoFault, faults_, stream_);
  buckets.require_ranks(groups, "sharded_optimizer");
  const bool sharded = sharding_ == Sharding::kSharded;
  MANTISSA_CHECK(sharded || !buckets.weights_in_common(),
                 "[sharded_optimizer] replicated ranks write all weights each, and these have one copy in common");
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    const BucketLayout::Bucket& whole = buckets_.layout().bucket(bucket);
    require_alignment(whole, buckets_.parameters(), options_);
    states_.push_back(
        {.segments = sharded ? buckets_.layout().shard_segments(bucket, communicator_.rank()) : whole.segments,
         .own = make_state(state_format(whole, options_), sharded ? whole.shard_numel : whole.numel, backend_)});
  }
  if (gathers_weights()) {
    std::vector<Tensor> sent;
    sent.reserve(static_cast<size_t>(buckets_.size()));
    for (int bucket = 0; bucket < buckets_.size(); ++bucket) sent.push_back(buckets_.weight(bucket));
    if (!coded.weights.empty()) {
      coded_ = std::make_unique<CodedGather>(buckets, groups, backend, stream, *gather_stream_, coded.weights,
                                             *coded.scales);
      for (const Tensor& rows : coded_->buffers()) sent.push_back(rows);
    }
    for (int index = 0; index < buckets.parameters().size(); ++index) {
      if (!buckets.parameters()[index].is_trainable) continue;
      buckets.parameters()[index].await_weight = [this, bucket = buckets.layout().bucket_of(index)] {
        await_bucket(bucket);
      };
    }
    arrivals_.resize(static_cast<size_t>(buckets.size()));
    for (const auto& stage : groups.stages()) registrations_.push_back(stage.group->register_buffers(sent));
  }
  if (digests == Digests::kOn) make_pieces();
}

ShardedOptimizer::~ShardedOptimizer() {
  try {
    if (std::uncaught_exceptions() == 0) await_weights();  // the others may still read this rank's shards
  } catch (const std::exception&) {                        // nobody uses the weights any more
  }
  for (int index = 0; index < buckets_.parameters().size(); ++index) {
    buckets_.parameters()[index].await_weight = nullptr;
  }
}

Tensor ShardedOptimizer::updated_weights(int bucket) const {
  if (has_codes(bucket)) return coded_->shard(bucket);
  return sharding_ == Sharding::kSharded ? buckets_.weight_shard(bucket, communicator_.rank())
                                         : buckets_.weight(bucket);
}

StateTensors ShardedOptimizer::tensors_of(int bucket) const {
  StateTensors tensors = states_[static_cast<size_t>(bucket)].own;
  if (keeps_masters()) return tensors;
  const Tensor weights = updated_weights(bucket);
  (weights.dtype() == wide_of(weights.dtype()) ? tensors.master : tensors.weight) = weights;
  return tensors;
}

void ShardedOptimizer::update(int bucket, const Tensor& control, const GradientReducer* reducer) {
  const StateTensors whole = tensors_of(bucket);
  int64_t piece = state(bucket).first_piece;
  for (const Segment& segment : state(bucket).segments) {
    const StateTensors tensors = whole.slice(segment.offset, segment.count);
    AdamWArgs args{.master = tensors.master,
                   .weight = tensors.weight,
                   .compensation = tensors.compensation,
                   .control = control,
                   .faults = faults_,
                   .rounding = options_.weight_rounding,
                   .key = options_.seed ^ kRoundingStream,
                   .moment_key = options_.seed ^ kMomentStream,
                   .parameter = static_cast<uint32_t>(segment.parameter),
                   .first_element = segment.begin};
    if (keeps_masters()) args.weight = updated_weights(bucket).slice(segment.offset, segment.count);
    if (options_.master == MasterWeights::kNoneStochastic) args.rounding = WeightRounding::kStochastic;
    if (options_.master == MasterWeights::kKahan) args.rounding = WeightRounding::kNearest;
    if (reducer != nullptr) {
      const bool decays = buckets_.parameters()[segment.parameter].decay == WeightDecay::kYes;
      args.gradient = reducer->result(bucket).slice(segment.offset, segment.count);
      args.m = tensors.m;
      args.v = tensors.v;
      args.m_absmax = tensors.m_absmax;
      args.v_absmax = tensors.v_absmax;
      args.beta1 = options_.beta1;
      args.beta2 = options_.beta2;
      args.epsilon = options_.epsilon;
      args.weight_decay = decays ? options_.weight_decay : 0.0f;
      if (has_digests()) args.digests = digests_of_piece(piece++);
    }
    backend_.run(args, stream_);
  }
}

void ShardedOptimizer::recompute_weights() {
  const UpdateControl number{.update = static_cast<uint32_t>(applied_steps_)};
  const Tensor control = backend_.make_record<UpdateControl>("update number");
  backend_.upload(&number, control, stream_);
  // Stored form: the present scales may not be those of the next pass.
  share_weights(Form::kStored, [&](int bucket) {
    if (keeps_masters()) update(bucket, control, nullptr);
  });
  await_weights();
  stream_.synchronize();  // it reads the number
}

void ShardedOptimizer::gather_stored(int bucket) {
  const Tensor mine = buckets_.weight_shard(bucket, communicator_.rank());
  if (has_codes(bucket)) backend_.copy(coded_->shard(bucket), mine, stream_);
  gather_stream_->wait(*stream_.record());
  Arrival& arrival = arrivals_[static_cast<size_t>(bucket)];
  arrival.messages = groups_.all_gather(buckets_.weight(bucket), *gather_stream_);
  if (!communicator_.can_be_captured()) return;
  arrival.messages->wait();  // its collectives are work of streams: this ends their launch
  arrival = {.event = gather_stream_->record()};
}

void ShardedOptimizer::await_bucket(int bucket) {
  for (; arriving_ > 0; --arriving_) {
    Arrival& arrival = arrivals_[static_cast<size_t>(arriving_ - 1)];
    const bool is_here = arrival.messages ? arrival.messages->test() : !arrival.event;
    if (!is_here && arriving_ <= bucket) break;
    if (arrival.messages) {
      arrival.messages->wait();
      arrival.event = gather_stream_->record();
    }
    if (arrival.event) stream_.wait(*arrival.event);
    arrival = {};  // an event of a captured step is invalid in another one
  }
  for (int next = arriving_; next > 0; --next) {
    StagedWork* const messages = arrivals_[static_cast<size_t>(next - 1)].messages.get();
    if (messages != nullptr && !messages->advance()) return;
  }
}

void ShardedOptimizer::share_weights(Form form, const std::function<void(int bucket)>& compute) {
  await_weights();  // the last gathers read what is written now
  StagedWork* first = nullptr;
  if (buckets_.weights_in_common()) communicator_.node_barrier(stream_)->wait();  // nobody reads the old weights
  for (int bucket = buckets_.size() - 1; bucket >= 0; --bucket) {  // the last bucket has the first weights of the model
    compute(bucket);
    if (!gathers_weights()) continue;
    if (form == Form::kCodes && has_codes(bucket)) {
      coded_->send(bucket);
    } else {
      gather_stored(bucket);
      if (first == nullptr) first = arrivals_[static_cast<size_t>(bucket)].messages.get();
    }
    if (first != nullptr) first->test();  // lets messages of all gathers move
    if (coded_) coded_->progress();
  }
  if (buckets_.weights_in_common()) communicator_.node_barrier(stream_)->wait();  // all have written the new ones
  if (coded_) coded_->finish();
  arriving_ = static_cast<int>(arrivals_.size());
  buckets_.bump_versions();
}

void ShardedOptimizer::initialize(uint64_t seed) {
  constexpr int64_t kChunkElements = int64_t{1} << 20;  // whole blocks
  wait_for_weight_readers();
  std::vector<float> values;
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    const StateTensors tensors = tensors_of(bucket);
    for (const Segment& segment : state(bucket).segments) {
      const Parameter& parameter = buckets_.parameters()[segment.parameter];
      for (int64_t done = 0; done < segment.count; done += kChunkElements) {
        const int64_t count = std::min(kChunkElements, segment.count - done);
        values.resize(static_cast<size_t>(count));
        initial_values(parameter, seed, segment.begin + done, count, values.data());
        check_values(std::span<const float>(values));
        upload_weights(values, {}, 0, tensors.slice(segment.offset + done, count), backend_, stream_);
      }
    }
    upload_moment({}, 0, DynamicMap::kSigned, tensors.m, tensors.m_absmax, backend_, stream_);
    upload_moment({}, 0, DynamicMap::kUnsigned, tensors.v, tensors.v_absmax, backend_, stream_);
  }
  buckets_.initialize_frozen(seed, backend_, stream_);
  applied_steps_ = 0;
  recompute_weights();
  if (has_digests()) accept_state();
}

void ShardedOptimizer::step(const GradientReducer& reducer, const Tensor& control) {
  MANTISSA_CHECK(reducer.config().sharding == sharding_,
                 "[sharded_optimizer.step] gradients and optimizer must be both sharded or both replicated");
  share_weights(coded_ && coded_->ready() ? Form::kCodes : Form::kStored,
                [&](int bucket) { update(bucket, control, &reducer); });
  if (has_digests() && !pieces_.empty())
    backend_.run(SettleDigestsArgs{.records = digests_, .control = control}, stream_);
}

template <typename T>
void ShardedOptimizer::check_values(std::span<const T> values) {
  const auto is_fault = [](T value) { return is_state_fault(static_cast<float>(value)); };
  if (std::any_of(values.begin(), values.end(), is_fault)) backend_.upload(&kFault, faults_, stream_);
}

std::vector<StatePiece> ShardedOptimizer::pieces() const {
  std::vector<StatePiece> pieces;
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    const StateTensors tensors = tensors_of(bucket);
    const int rank = communicator_.rank();
    const int64_t begin = sharding_ == Sharding::kSharded ? 0 : buckets_.layout().shard_begin(bucket, rank);
    for (const Segment& segment : buckets_.layout().shard_segments(bucket, communicator_.rank())) {
      pieces.push_back({tensors.slice(begin + segment.offset, segment.count), &buckets_.parameters()[segment.parameter],
                        segment.begin, segment.count});
    }
  }
  return pieces;
}

void ShardedOptimizer::begin_load() {
  wait_for_weight_readers();
  for (BucketState& state : states_) {
    state.loaded.assign(state.segments.size(), 0);
    state.m_blocks.assign(state.segments.size(), {});
    state.v_blocks.assign(state.segments.size(), {});
  }
}

bool ShardedOptimizer::needs(int parameter, int64_t begin, int64_t count) const {
  if (!buckets_.parameters()[parameter].is_trainable) return false;
  const BucketState& state = states_[static_cast<size_t>(buckets_.layout().bucket_of(parameter))];
  return std::any_of(state.segments.begin(), state.segments.end(), [&](const Segment& segment) {
    return segment.parameter == parameter && begin < segment.begin + segment.count && segment.begin < begin + count;
  });
}

void ShardedOptimizer::load(const StateValues& values) {
  const auto count = static_cast<int64_t>(values.size());
  MANTISSA_CHECK(values.parameter >= 0 && values.parameter < buckets_.parameters().size(),
                 "[sharded_optimizer.load] there is no parameter {}", values.parameter);
  const Parameter& parameter = buckets_.parameters()[values.parameter];
  MANTISSA_CHECK(parameter.is_trainable, "[sharded_optimizer.load] '{}' is frozen and has no state", parameter.name);
  require_sizes(values, parameter);
  require<CheckpointError>(values.begin >= 0 && values.begin + count <= parameter.numel(),
                           "optimizer state: elements [{}, {}) of '{}' do not exist; it has shape {}", values.begin,
                           values.begin + count, parameter.name, parameter.shape);
  const int bucket = buckets_.layout().bucket_of(values.parameter);
  const StateTensors whole = tensors_of(bucket);
  BucketState& state = this->state(bucket);
  MANTISSA_CHECK(state.loaded.size() == state.segments.size(), "[sharded_optimizer.load] there was no begin_load()");
  for (size_t index = 0; index < state.segments.size(); ++index) {
    const Segment& segment = state.segments[index];
    if (segment.parameter != values.parameter) continue;
    const int64_t first = std::max(segment.begin, values.begin);
    const int64_t last = std::min(segment.begin + segment.count, values.begin + count);
    if (first >= last) continue;
    const int64_t source = first - values.begin, inside = first - segment.begin, part = last - first;
    state.loaded[index] += part;
    if (!values.doubles.empty()) {
      for (const auto& given : {values.doubles.weights, values.doubles.m, values.doubles.v}) check_values(given);
      upload_doubles(values.doubles, source, whole.slice(segment.offset + inside, part), backend_, stream_);
      continue;
    }
    for (const auto& given : {values.weights, values.m.values, values.m.absmax, values.v.values, values.v.absmax}) {
      check_values(given);
    }
    const StateTensors target = whole.slice(segment.offset, segment.count);
    const StateTensors weights{.master = target.master, .weight = target.weight, .compensation = target.compensation};
    upload_weights(values.weights, values.compensation, source, weights.slice(inside, part), backend_, stream_);
    const auto load_moment = [&](const MomentValues& from, DynamicMap map, const Tensor& moment, const Tensor& absmax,
                                 MomentBlocks& blocks) {
      if (moment.dtype() == DType::kU8 && !from.values.empty()) {
        const auto piece = from.values.subspan(static_cast<size_t>(source), static_cast<size_t>(part));
        blocks.add(piece, inside, map, moment, absmax, backend_, stream_);
      } else {
        const StateTensors piece = StateTensors{.m = moment, .m_absmax = absmax}.slice(inside, part);
        upload_moment(from, source, map, piece.m, piece.m_absmax, backend_, stream_);
      }
    };
    load_moment(values.m, DynamicMap::kSigned, target.m, target.m_absmax, state.m_blocks[index]);
    load_moment(values.v, DynamicMap::kUnsigned, target.v, target.v_absmax, state.v_blocks[index]);
  }
}

void ShardedOptimizer::end_load(int64_t applied_steps) {
  struct Mismatch {
    int32_t parameter = -1;  // the first one with a wrong number of elements
    int32_t padding = 0;
    int64_t expected = 0;
    int64_t loaded = 0;
  } mine;
  for (const BucketState& state : states_) {
    MANTISSA_CHECK(state.loaded.size() == state.segments.size(),
                   "[sharded_optimizer.end_load] there was no begin_load()");
    for (size_t index = 0; index < state.segments.size() && mine.parameter < 0; ++index) {
      const Segment& segment = state.segments[index];
      if (state.loaded[index] == segment.count) continue;
      mine = {.parameter = segment.parameter, .expected = segment.count, .loaded = state.loaded[index]};
    }
  }
  // All ranks learn of all failures, so that no rank waits in the all-gather below.
  const std::vector<Mismatch> mismatches = all_gather_records(communicator_, mine);
  for (size_t rank = 0; rank < mismatches.size(); ++rank) {
    if (mismatches[rank].parameter < 0) continue;
    throw CheckpointError(fmt::format("optimizer state of '{}': rank {} needs {} elements, the checkpoint gave {}",
                                      buckets_.parameters()[mismatches[rank].parameter].name, rank,
                                      mismatches[rank].expected, mismatches[rank].loaded));
  }
  for (BucketState& state : states_) {
    state.loaded.clear();
    state.m_blocks.clear();
    state.v_blocks.clear();
  }
  applied_steps_ = applied_steps;
  recompute_weights();
  if (has_digests()) accept_state();
}

size_t ShardedOptimizer::master_bytes() const {
  size_t bytes = 0;
  for (const BucketState& state : states_) bytes += bytes_of(state.own.master) + bytes_of(state.own.compensation);
  return bytes;
}

size_t ShardedOptimizer::moment_bytes() const {
  size_t bytes = 0;
  for (const BucketState& state : states_) {
    const StateTensors& own = state.own;
    for (const Tensor& tensor : {own.m, own.v, own.m_absmax, own.v_absmax}) bytes += bytes_of(tensor);
  }
  return bytes;
}

}  // namespace mantissa
