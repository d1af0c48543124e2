// Extents and element addresses of packed attention operands, the same for every backend and both passes.
#pragma once

#include <cstdint>

#include "core/backend/kernel_args.h"

namespace mantissa {

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

  constexpr int64_t group() const { return num_heads / num_kv_heads; }  // query heads per key head

  // Elements.
  constexpr int64_t qkv_row() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  constexpr int64_t out_row() const { return num_heads * head_dim; }
  constexpr int64_t query_offset(int64_t b, int64_t head, int64_t t) const {
    return (b * sequence_length + t) * qkv_row() + head * head_dim;
  }
  constexpr int64_t key_offset(int64_t b, int64_t kv_head, int64_t t) const {
    return query_offset(b, num_heads + kv_head, t);
  }
  constexpr int64_t value_offset(int64_t b, int64_t kv_head, int64_t t) const {
    return query_offset(b, num_heads + num_kv_heads + kv_head, t);
  }
  constexpr int64_t out_offset(int64_t b, int64_t head, int64_t t) const {
    return (b * sequence_length + t) * out_row() + head * head_dim;
  }
  constexpr int64_t lse_offset(int64_t b, int64_t head, int64_t t) const {
    return (b * num_heads + head) * sequence_length + t;
  }
};

}  // namespace mantissa
