// ShardedOptimizer: its state as pieces of parameters, saved and loaded.
#include <algorithm>

#include "comm/sharded_optimizer.h"

namespace mantissa {
namespace {

// Uploads `count` of the values from `first`, or zeros if there are none, in the dtype of `target`.
void upload_values(std::span<const float> values, int64_t first, const Tensor& target, Backend& backend,
                   Stream& stream) {
  if (values.empty()) {
    backend.fill(target, 0.0f, stream);
    return;
  }
  const float* from = values.data() + first;
  if (target.dtype() == DType::kF32) {
    backend.upload(from, target, stream);
    return;
  }
  std::vector<BFloat16> rounded(static_cast<size_t>(target.numel()));
  std::transform(from, from + target.numel(), rounded.begin(), from_float<BFloat16>);
  backend.upload(rounded.data(), target, stream);
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
    const BucketState& state = states_[static_cast<size_t>(bucket)];
    const int64_t shard = buckets_.layout().buckets()[static_cast<size_t>(bucket)].shard_numel;
    const int64_t begin = sharding_ == Sharding::kSharded ? 0 : communicator_.rank() * shard;
    for (const Segment& segment : buckets_.layout().shard_segments(bucket, communicator_.rank())) {
      const int64_t offset = begin + segment.offset;
      pieces.push_back({.parameter = &buckets_.parameters()[segment.parameter],
                        .begin = segment.begin,
                        .count = segment.count,
                        .master = state.master.slice(offset, segment.count),
                        .m = state.m.slice(offset, segment.count),
                        .v = state.v.slice(offset, segment.count)});
    }
  }
  return pieces;
}

void ShardedOptimizer::begin_load() {
  for (BucketState& state : states_) state.loaded.assign(state.segments.size(), 0);
}

bool ShardedOptimizer::needs(int parameter, int64_t begin, int64_t count) const {
  const BucketState& state = states_[static_cast<size_t>(buckets_.layout().bucket_of(parameter))];
  return std::any_of(state.segments.begin(), state.segments.end(), [&](const Segment& segment) {
    return segment.parameter == parameter && begin < segment.begin + segment.count && segment.begin < begin + count;
  });
}

void ShardedOptimizer::load(const StateValues& values) {
  const auto count = static_cast<int64_t>(values.master.size());
  MANTISSA_CHECK(values.parameter >= 0 && values.parameter < buckets_.parameters().size(),
                 "[sharded_optimizer.load] there is no parameter {}", values.parameter);
  const Parameter& parameter = buckets_.parameters()[values.parameter];
  for (const auto moment : {values.m, values.v}) {
    MANTISSA_CHECK(moment.empty() || moment.size() == values.master.size(),
                   "[sharded_optimizer.load] '{}' has {} masters, but {} values of a moment", parameter.name, count,
                   moment.size());
  }
  if (values.begin < 0 || values.begin + count > parameter.numel()) {
    throw CheckpointError(fmt::format("optimizer state: elements [{}, {}) of '{}' do not exist; it has shape {}",
                                      values.begin, values.begin + count, parameter.name, parameter.shape));
  }
  BucketState& state = states_[static_cast<size_t>(buckets_.layout().bucket_of(values.parameter))];
  MANTISSA_CHECK(state.loaded.size() == state.segments.size(), "[sharded_optimizer.load] there was no begin_load()");
  for (size_t index = 0; index < state.segments.size(); ++index) {
    const Segment& segment = state.segments[index];
    if (segment.parameter != values.parameter) continue;
    const int64_t first = std::max(segment.begin, values.begin);
    const int64_t last = std::min(segment.begin + segment.count, values.begin + count);
    if (first >= last) continue;
    const int64_t offset = segment.offset + first - segment.begin;
    const int64_t source = first - values.begin;
    upload_values(values.master, source, state.master.slice(offset, last - first), backend_, stream_);
    upload_values(values.m, source, state.m.slice(offset, last - first), backend_, stream_);
    upload_values(values.v, source, state.v.slice(offset, last - first), backend_, stream_);
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
