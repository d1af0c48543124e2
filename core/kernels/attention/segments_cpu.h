// How attention's backward pass is cut into tasks.
//
// The queries of a key head, of all query heads that share it, are cut into segments: pieces of one query head, of
// about equal work. d_k and d_v are sums over the segments, in order, of each segment's own fp32 sum over its queries.
// So their bits depend on the length, the heads and the mask: not on threads, and not on how many sequences there are.
//
// Where there are key heads enough for the threads, a task does a key head with all of its segments and needs one block
// of partial sums. Else each segment is a task, and all their partial sums are kept until they are added up, for about
// 32 segments at a time (at most 63, or the query heads of a key head where those are more): for D = 64, one head and
// T = 4096, these are 16 segments with 22.3 MiB under the causal mask and 32 MiB without.
#pragma once

#include <array>

#include "core/kernels/attention/blocks_cpu.h"

namespace mantissa::cpu {

// Sums over queries for consecutive keys: rows of one length in fp32.
struct KeySums {
  float *d_keys = nullptr, *d_values = nullptr;

  KeySums from(int64_t floats) const { return {d_keys + floats, d_values + floats}; }
};

// Segments [begin, end) of a query head.
struct SegmentRun {
  int64_t b, head, begin, end;
  KeySums total;   // of all keys that they see
  KeySums part{};  // of one key block: of a segment, before it is added to the total; null: what comes is added at once
};

struct AttentionSegments : AttentionBlocks {
  // Tasks to aim at, as in the forward pass.
  static constexpr int64_t kWantedTasks = 32;
  // Query blocks in a segment on average, at least: each segment packs the keys that it sees again.
  static constexpr int64_t kMinBlocks = 4;

  explicit AttentionSegments(const AttentionShape& extents);

  // Of a query head.
  int64_t segments() const { return segments_; }
  // Of a key head; 1: nothing is cut, and queries are added up as they come, over all query heads.
  int64_t segments_of_group() const { return is_cut_ ? segments_ * group() : 1; }
  // Whether each segment is to be a task of `threads` threads: where key heads as tasks would leave them idle for more
  // than a tenth of the time. What comes out is the same.
  bool in_parallel(int64_t threads) const;

  // Key heads whose segments are done in parallel, before the next ones are: this bounds the memory of partial sums.
  int64_t heads_per_round() const;

  // The query blocks of a segment, and its first query. The segment after the last begins at the end.
  int64_t segment_begin(int64_t segment) const { return query_blocks_[segment]; }
  int64_t segment_end(int64_t segment) const { return query_blocks_[segment + 1]; }
  int64_t first_query(int64_t segment) const {
    return std::min(sequence_length, segment_begin(segment) * kAttentionBlock);
  }
  // Key blocks [0, end) that a segment sees.
  int64_t segment_key_blocks(int64_t segment) const { return key_blocks_end(segment_end(segment) - 1); }
  // The first segment that sees a key block; so do all that follow.
  int64_t first_segment(int64_t key_block) const;

  SegmentRun whole_head(int64_t b, int64_t head, const KeySums& total, const KeySums& part) const {
    return {b, head, 0, segments_, total, segments_of_group() > 1 ? part : KeySums{}};
  }

  // Partial sums of a key head, in rows of `columns`: size, and those of segment `segment` of query head `g` of the
  // group.
  int64_t sums_floats(int64_t columns) const { return group() * floats_before(segments_, columns); }
  KeySums sums(float* of_head, int64_t g, int64_t segment, int64_t columns) const;

 private:
  int64_t floats_before(int64_t segment, int64_t columns) const {
    return 2 * key_blocks_before_[segment] * kAttentionBlock * columns;
  }

  bool is_cut_;
  int64_t segments_;
  std::array<int64_t, kWantedTasks + 1> query_blocks_{};       // where segments begin
  std::array<int64_t, kWantedTasks + 1> key_blocks_before_{};  // that earlier segments see, added up
};

// The steps of a backward pass for one way of computing it; b, heads, segments and key blocks are indices.
struct AttentionBackwardKernels {
  using Args = AttentionBackwardArgs;
  using Shape = AttentionSegments;

  // A key head with all of its query heads.
  void (*head)(const Args& args, const Shape& shape, int64_t b, int64_t kv_head);
  // One segment: writes its d_q and its partial sums, among those of its key head.
  void (*segment)(const Args& args, const Shape& shape, int64_t b, int64_t head, int64_t segment, float* of_head);
  // Adds up the partial sums of a key head for one key block, and writes d_k and d_v.
  void (*finish)(const Args& args, const Shape& shape, int64_t b, int64_t kv_head, int64_t key_block, float* of_head);
  int64_t columns;  // of partial sums
};

void run_attention_backward(const AttentionBackwardArgs& args, const AttentionSegments& shape,
                            const AttentionBackwardKernels& kernels);

}  // namespace mantissa::cpu
