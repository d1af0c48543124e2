// attention: scaled dot-product self-attention on packed queries, keys and values.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

struct AttentionShape {
  int64_t sequence_length = 0;  // T
  int64_t num_heads = 0;        // H, query heads
  int64_t num_kv_heads = 0;     // KV, divides H
  int64_t head_dim = 0;         // D
  Mask mask = Mask::kCausal;
};

// qkv (B*T, (H + 2*KV) * D). Returns (B*T, H*D): softmax(q k^T / sqrt(D)) v, with softmax and sums in fp32. Only
// qkv, the output and the log-sum-exp of each row are kept for the backward pass.
Var attention(Tape& tape, Var qkv, const AttentionShape& shape);

}  // namespace mantissa
