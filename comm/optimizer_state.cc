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

// Values cannot become codes: the pieces of a checkpoint that holds none need not be whole blocks.
void require_codes(const MomentValues& values, const Tensor& target, const char* which, const Parameter& parameter) {
  if (target.dtype() != DType::kU8 || values.values.empty()) return;
  throw CheckpointError(
      fmt::format("the {} moment of '{}' is to be kept in 8 bits, and the checkpoint holds it in more: go on with "
                  "optimizer.{}_moment as it was saved, or start the run anew in 8 bits",
                  which, parameter.name, which));
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
  for (BucketState& state : states_) state.loaded.assign(state.segments.size(), 0);
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
    require_codes(values.m, whole.m, "first", parameter);
    require_codes(values.v, whole.v, "second", parameter);
    const int64_t source = first - values.begin;
    const StateTensors target = whole.slice(segment.offset + first - segment.begin, last - first);
    upload_weights(values.weights, values.compensation, source, target, backend_, stream_);
    upload_moment(values.m, source, DynamicMap::kSigned, target.m, target.m_absmax, backend_, stream_);
    upload_moment(values.v, source, DynamicMap::kUnsigned, target.v, target.v_absmax, backend_, stream_);
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
  for (BucketState& state : states_) state.loaded.clear();
  applied_steps_ = applied_steps;
  remake_weights();
}

}  // namespace mantissa
