// The blocks of attention on the CPU, in both passes, and the tasks of the backward pass.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "core/kernels/attention/args.h"

namespace mantissa::cpu {

// Size of the square blocks of queries and keys. A block of scores (16 KiB) stays in the first-level cache, together
// with a strip of the operand that it is multiplied with.
constexpr int64_t kAttentionBlock = 64;

// The keys of a key block that a query block sees: its query r sees keys [begin(r), end(r)).
struct BlockView {
  int64_t keys;  // of the block
  bool diagonal;
  int64_t shift;  // the first key that query 0 sees, by the window

  int64_t begin(int64_t r) const { return std::clamp<int64_t>(r + shift, 0, keys); }
  int64_t end(int64_t r) const { return diagonal ? std::min(keys, r + 1) : keys; }
};

struct AttentionBlocks : AttentionShape {
  explicit AttentionBlocks(const AttentionShape& shape) : AttentionShape(shape) {}

  int64_t blocks() const { return (sequence_length + kAttentionBlock - 1) / kAttentionBlock; }
  int64_t block_rows(int64_t block) const {
    return std::min(kAttentionBlock, sequence_length - block * kAttentionBlock);
  }
  // Key blocks [begin, end) that the queries of a block see.
  int64_t key_blocks_begin(int64_t query_block) const {
    return std::max<int64_t>(0, first_key(query_block * kAttentionBlock)) / kAttentionBlock;
  }
  int64_t key_blocks_end(int64_t query_block) const { return mask == Mask::kCausal ? query_block + 1 : blocks(); }
  // Query blocks [begin, end) that see a key block.
  int64_t query_blocks_begin(int64_t key_block) const { return mask == Mask::kCausal ? key_block : 0; }
  int64_t query_blocks_end(int64_t key_block) const {
    if (window == 0) return blocks();
    return std::min(blocks(), ((key_block + 1) * kAttentionBlock + window - 2) / kAttentionBlock + 1);
  }
  BlockView view(int64_t query_block, int64_t key_block) const {
    return {.keys = block_rows(key_block),
            .diagonal = mask == Mask::kCausal && query_block == key_block,
            .shift = window == 0 ? -kAttentionBlock : (query_block - key_block) * kAttentionBlock - window + 1};
  }
};

// ---- The tasks of the backward pass
//
// The queries of a key head (of all query heads that share it) are cut into segments: parts of a query head with about
// equal work. d_k and d_v are sums over the segments, in order, of each segment's own fp32 sum over its queries. So
// their bits depend on the length, the heads and the mask, but not on the number of threads or sequences.
//
// With enough key heads for the threads, a task computes a key head with all its segments and needs one block of
// partial sums. Otherwise each segment is a task, and all partial sums are kept until they are added up. This happens
// for about 32 segments at a time (at most 63, or the query heads of a key head if those are more). For D = 64, one
// head and T = 4096, these are 16 segments with 22.3 MiB under the causal mask and 32 MiB without.

// Sums over queries, for consecutive keys: fp32 rows of equal length.
struct KeySums {
  float *d_keys = nullptr, *d_values = nullptr;

  KeySums from(int64_t floats) const { return {d_keys + floats, d_values + floats}; }
};

// Segments [begin, end) of a query head.
struct SegmentRun {
  int64_t b, head, begin, end;
  KeySums total;   // for all keys that the segments see
  KeySums part{};  // a segment's sums for a key block, added to total afterwards; null: add to total directly
};

struct AttentionSegments : AttentionBlocks {
  // Target number of tasks, as in the forward pass.
  static constexpr int64_t kWantedTasks = 32;
  // Minimum of query blocks per segment, on average: each segment packs the keys that it sees again.
  static constexpr int64_t kMinBlocks = 4;

  explicit AttentionSegments(const AttentionShape& shape);

  // The number of segments in a query head.
  int64_t segments() const { return segments_; }
  // The number of segments in a key head. 1: not cut; queries of all query heads are summed directly.
  int64_t segments_of_group() const { return is_cut_ ? segments_ * group() : 1; }
  // Whether each segment becomes a task of `threads` threads: if key heads as tasks would leave threads idle for more
  // than a tenth of the time. Results are the same either way.
  bool in_parallel(int64_t threads) const;

  // Key heads whose segments run in parallel at a time. Bounds the memory of partial sums.
  int64_t heads_per_round() const;

  // Query blocks [segment_begin(), segment_end()) of a segment, and its first query. The segment after the last begins
  // at the end.
  int64_t segment_begin(int64_t segment) const { return query_blocks_[segment]; }
  int64_t segment_end(int64_t segment) const { return query_blocks_[segment + 1]; }
  int64_t first_query(int64_t segment) const {
    return std::min(sequence_length, segment_begin(segment) * kAttentionBlock);
  }
  // The end of the key blocks that a segment sees.
  int64_t segment_key_blocks(int64_t segment) const { return key_blocks_end(segment_end(segment) - 1); }
  // Segments [first_segment(), segments_end()) see a key block.
  int64_t first_segment(int64_t key_block) const;
  int64_t segments_end(int64_t key_block) const;

  SegmentRun whole_head(int64_t b, int64_t head, const KeySums& total, const KeySums& part) const {
    return {b, head, 0, segments_, total, segments_of_group() > 1 ? part : KeySums{}};
  }

  // Partial sums of a key head, in rows of `columns`: their size, and those of segment `segment` of query head `g` of
  // the group.
  int64_t sums_floats(int64_t columns) const { return group() * floats_before(segments_, columns); }
  KeySums sums(float* of_head, int64_t g, int64_t segment, int64_t columns) const;

 private:
  int64_t floats_before(int64_t segment, int64_t columns) const {
    return 2 * key_blocks_before_[segment] * kAttentionBlock * columns;
  }

  bool is_cut_;
  int64_t segments_;
  std::array<int64_t, kWantedTasks + 1> query_blocks_{};       // first block of each segment
  std::array<int64_t, kWantedTasks + 1> key_blocks_before_{};  // up to the ends of earlier segments, in total
};

// The kernels of one implementation of the backward pass. b, heads, segments and key blocks are indices.
struct AttentionBackwardKernels {
  using Args = AttentionBackwardArgs;
  using Shape = AttentionSegments;

  // Computes a key head with all its query heads.
  void (*head)(const Args& args, const Shape& shape, int64_t b, int64_t kv_head);
  // Computes a segment: writes its d_q, and its partial sums into those of its key head.
  void (*segment)(const Args& args, const Shape& shape, int64_t b, int64_t head, int64_t segment, float* of_head);
  // Adds up the partial sums of a key head for one key block. Writes d_k and d_v.
  void (*finish)(const Args& args, const Shape& shape, int64_t b, int64_t kv_head, int64_t key_block, float* of_head);
  int64_t columns;  // per row of partial sums
};

// Calls of equal heads, in order.
void run_attention_backward(std::span<const AttentionBackwardArgs> calls, const AttentionBackwardKernels& kernels);

}  // namespace mantissa::cpu
