// attention: scaled dot-product self-attention on packed queries, keys and values.
#pragma once

#include "core/autograd/tape.h"
#include "core/kernels/attention/args.h"

namespace mantissa {

// qkv (B*T, (H + 2*KV) * D); shape.batch and shape.scale are set here. Returns (B*T, H*D): softmax(q k^T / sqrt(D)) v, softmax and sums in fp32. Only the output
// and the log-sum-exp of each row are kept for the backward pass.
Var attention(Tape& tape, Var qkv, AttentionShape shape);

}  // namespace mantissa
