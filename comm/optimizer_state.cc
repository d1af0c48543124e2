// ShardedOptimizer: its state as pieces of parameters, saved and loaded.
#include <algorithm>

#include "comm/sharded_optimizer.h"
#include "core/quant/dynamic_map.h"

namespace mantissa {
namespace {

// Sizes of one piece's values must fit together, and codes begin with a block.
void require_sizes(const StateValues& values, const Parameter& parameter) {
  const size_t count = values.weights.size();
  MANTISSA_CHECK(values.compensation.empty() || values.compensation.size() == count,
                 "[sharded_optimizer.load] '{}' has {} weights, but {} compensations", parameter.name, count,
                 values.compensation.size());
  for (const MomentValues& moment : {values.m, values.v}) {
    MANTISSA_CHECK(moment.empty() || moment.size() == count,
                   "[sharded_optimizer.load] '{}' has {} weights, but {} values of a moment", parameter.name, count,
                   moment.size());
    if (moment.codes.empty()) continue;
    const size_t blocks = (count + kDynamicBlock - 1) / kDynamicBlock;
    if (moment.absmax.size() != blocks || values.begin % kDynamicBlock != 0) {
      throw CheckpointError(
          fmt::format("optimizer state: {} codes of '{}' from element {} with {} scales; expected whole blocks of {} "
                      "elements with {}",
                      count, parameter.name, values.begin, moment.absmax.size(), kDynamicBlock, blocks));
    }
  }
}

// One moment of a segment, and which of its elements have come as which values.
struct MomentLoad {
  const Tensor &moment, &absmax;  // of the segment
  DynamicMap map;
  const MomentValues& values;
  int64_t source, first, count;  // `count` elements: from `source` in the values, from `first` in the segment
};

// Values on their way to codes are collected in `blocks`.
void load_moment(const MomentLoad& load, MomentBlocks& blocks, Backend& backend, Stream& stream) {
  if (load.moment.dtype() == DType::kU8 && !load.values.values.empty()) {
    const auto values = load.values.values.subspan(static_cast<size_t>(load.source), static_cast<size_t>(load.count));
    return blocks.add(values, load.first, load.map, load.moment, load.absmax, backend, stream);
  }
  StateTensors segment;
  segment.m = load.moment;
  segment.m_absmax = load.absmax;
  const StateTensors part = segment.slice(load.first, load.count);
  upload_moment(load.values, load.source, load.map, part.m, part.m_absmax, backend, stream);
}

StateTensors without_moments(StateTensors state) {
  state.m = state.v = state.m_absmax = state.v_absmax = Tensor();
  return state;
}

// What loading reports to the other ranks.
struct LoadRecord {
  int32_t parameter = -1;  // first one whose elements are not as many as expected
  int32_t padding = 0;
  int64_t expected = 0;
  int64_t loaded = 0;
};

}  // namespace

std::vector<StatePiece> ShardedOptimizer::pieces() const {
  std::vector<StatePiece> pieces;
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    const StateTensors state = state_of(bucket);
    const int64_t shard = buckets_.layout().buckets()[static_cast<size_t>(bucket)].shard_numel;
    const int64_t begin = sharding_ == Sharding::kSharded ? 0 : communicator_.rank() * shard;
    for (const Segment& segment : buckets_.layout().shard_segments(bucket, communicator_.rank())) {
      pieces.push_back({state.slice(begin + segment.offset, segment.count), &buckets_.parameters()[segment.parameter],
                        segment.begin, segment.count});
    }
  }
  return pieces;
}

void ShardedOptimizer::begin_load() {
  await_readers_of_weights();
  for (BucketState& state : states_) {
    state.loaded.assign(state.segments.size(), 0);
    state.m_blocks.assign(state.segments.size(), {});
    state.v_blocks.assign(state.segments.size(), {});
  }
}

bool ShardedOptimizer::needs(int parameter, int64_t begin, int64_t count) const {
  const BucketState& state = states_[static_cast<size_t>(buckets_.layout().bucket_of(parameter))];
  return std::any_of(state.segments.begin(), state.segments.end(), [&](const Segment& segment) {
    return segment.parameter == parameter && begin < segment.begin + segment.count && segment.begin < begin + count;
  });
}

void ShardedOptimizer::load(const StateValues& values) {
  const auto count = static_cast<int64_t>(values.weights.size());
  MANTISSA_CHECK(values.parameter >= 0 && values.parameter < buckets_.parameters().size(),
                 "[sharded_optimizer.load] there is no parameter {}", values.parameter);
  const Parameter& parameter = buckets_.parameters()[values.parameter];
  require_sizes(values, parameter);
  if (values.begin < 0 || values.begin + count > parameter.numel()) {
    throw CheckpointError(fmt::format("optimizer state: elements [{}, {}) of '{}' do not exist; it has shape {}",
                                      values.begin, values.begin + count, parameter.name, parameter.shape));
  }
  const int bucket = buckets_.layout().bucket_of(values.parameter);
  const StateTensors whole = state_of(bucket);
  BucketState& state = states_[static_cast<size_t>(bucket)];
  MANTISSA_CHECK(state.loaded.size() == state.segments.size(), "[sharded_optimizer.load] there was no begin_load()");
  for (size_t index = 0; index < state.segments.size(); ++index) {
    const Segment& segment = state.segments[index];
    if (segment.parameter != values.parameter) continue;
    const int64_t first = std::max(segment.begin, values.begin);
    const int64_t last = std::min(segment.begin + segment.count, values.begin + count);
    if (first >= last) continue;
    const int64_t source = first - values.begin, inside = first - segment.begin, part = last - first;
    const StateTensors target = whole.slice(segment.offset, segment.count);
    upload_weights(values.weights, values.compensation, source, without_moments(target).slice(inside, part), backend_,
                   stream_);
    load_moment({target.m, target.m_absmax, DynamicMap::kSigned, values.m, source, inside, part}, state.m_blocks[index],
                backend_, stream_);
    load_moment({target.v, target.v_absmax, DynamicMap::kUnsigned, values.v, source, inside, part},
                state.v_blocks[index], backend_, stream_);
    state.loaded[index] += last - first;
  }
}

void ShardedOptimizer::end_load(int64_t applied_steps) {
  LoadRecord mine;
  for (const BucketState& state : states_) {
    MANTISSA_CHECK(state.loaded.size() == state.segments.size(),
                   "[sharded_optimizer.end_load] there was no begin_load()");
    for (size_t index = 0; index < state.segments.size() && mine.parameter < 0; ++index) {
      const Segment& segment = state.segments[index];
      if (state.loaded[index] == segment.count) continue;
      mine = {.parameter = segment.parameter, .expected = segment.count, .loaded = state.loaded[index]};
    }
  }
  // Every rank learns of every failure: none may be left waiting in the all-gather below.
  const std::vector<LoadRecord> records = all_gather_records(communicator_, mine);
  for (size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].parameter < 0) continue;
    throw CheckpointError(fmt::format("optimizer state of '{}': rank {} needs {} elements, the checkpoint gave {}",
                                      buckets_.parameters()[records[rank].parameter].name, rank, records[rank].expected,
                                      records[rank].loaded));
  }
  for (BucketState& state : states_) {
    state.loaded.clear();
    state.m_blocks.clear();
    state.v_blocks.clear();
  }
  applied_steps_ = applied_steps;
  remake_weights();
}

}  // namespace mantissa
