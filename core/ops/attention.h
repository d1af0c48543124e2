// attention: scaled dot-product self-attention on packed queries, keys and values.
#pragma once

#include "core/autograd/tape.h"
#include "core/kernels/attention/args.h"

namespace mantissa {

// qkv (B*T, (H + 2*KV) * D); sets shape.batch and shape.scale. Returns (B*T, H*D): softmax(q k^T / sqrt(D)) v, with
// softmax and sums in fp32. Only qkv, the output and the log-sum-exp of each row are kept for the backward pass.
Var attention(Tape& tape, Var qkv, AttentionShape shape);

}  // namespace mantissa
