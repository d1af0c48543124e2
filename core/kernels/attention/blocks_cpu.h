// How attention is cut into blocks of queries and keys, in the forward and the backward pass.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/kernels/attention/args.h"

namespace mantissa::cpu {

// Size of the square blocks of queries and keys. A block of scores (16 KiB) stays in the first-level cache, together
// with a strip of the operand that it is multiplied with.
constexpr int64_t kAttentionBlock = 64;

struct AttentionBlocks : AttentionShape {
  explicit AttentionBlocks(const AttentionShape& shape) : AttentionShape(shape) {}

  int64_t blocks() const { return (sequence_length + kAttentionBlock - 1) / kAttentionBlock; }
  int64_t block_rows(int64_t block) const {
    return std::min(kAttentionBlock, sequence_length - block * kAttentionBlock);
  }
  // Key blocks [0, end) that the queries of a block see.
  int64_t key_blocks_end(int64_t query_block) const { return mask == Mask::kCausal ? query_block + 1 : blocks(); }
  // Query blocks [begin, blocks()) that see a key block.
  int64_t query_blocks_begin(int64_t key_block) const { return mask == Mask::kCausal ? key_block : 0; }
  bool on_diagonal(int64_t query_block, int64_t key_block) const {
    return mask == Mask::kCausal && query_block == key_block;
  }
};

}  // namespace mantissa::cpu
