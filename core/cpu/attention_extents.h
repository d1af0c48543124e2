// Extents and addresses of packed attention operands, shared by the forward and the backward pass.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

// Queries and keys are worked on in square blocks of this size: a block of scores (16 KiB) stays in the first-level
// cache, together with a strip of the operand that it is multiplied with.
constexpr int64_t kAttentionBlock = 64;

struct AttentionExtents {
  int64_t batch, sequence_length, num_heads, num_kv_heads, head_dim;
  float scale;
  Mask mask;

  template <typename Args>  // AttentionForwardArgs or AttentionBackwardArgs
  explicit AttentionExtents(const Args& args)
      : batch(args.batch),
        sequence_length(args.sequence_length),
        num_heads(args.num_heads),
        num_kv_heads(args.num_kv_heads),
        head_dim(args.head_dim),
        scale(args.scale),
        mask(args.mask) {}

  int64_t group() const { return num_heads / num_kv_heads; }  // query heads per key head
  int64_t blocks() const { return (sequence_length + kAttentionBlock - 1) / kAttentionBlock; }
  int64_t block_rows(int64_t block) const {
    return std::min(kAttentionBlock, sequence_length - block * kAttentionBlock);
  }
  // Key blocks [0, end) that the queries of a block see.
  int64_t key_blocks_end(int64_t query_block) const { return mask == Mask::kCausal ? query_block + 1 : blocks(); }
  bool on_diagonal(int64_t query_block, int64_t key_block) const {
    return mask == Mask::kCausal && query_block == key_block;
  }

  // Elements.
  int64_t qkv_row() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  int64_t out_row() const { return num_heads * head_dim; }
  int64_t query_offset(int64_t b, int64_t head, int64_t t) const {
    return (b * sequence_length + t) * qkv_row() + head * head_dim;
  }
  int64_t key_offset(int64_t b, int64_t kv_head, int64_t t) const { return query_offset(b, num_heads + kv_head, t); }
  int64_t value_offset(int64_t b, int64_t kv_head, int64_t t) const {
    return query_offset(b, num_heads + num_kv_heads + kv_head, t);
  }
  int64_t out_offset(int64_t b, int64_t head, int64_t t) const {
    return (b * sequence_length + t) * out_row() + head * head_dim;
  }
  int64_t lse_offset(int64_t b, int64_t head, int64_t t) const { return (b * num_heads + head) * sequence_length + t; }
};

// ContractError naming `op` when extents or dtypes do not fit together.
void check_attention(const char* op, const AttentionExtents& shape, const Tensor& qkv, const Tensor& out,
                     const Tensor& lse);

}  // namespace mantissa::cpu
