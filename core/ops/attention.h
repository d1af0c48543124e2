// attention: scaled dot-product self-attention on packed queries, keys and values, and rope, which rotates them.
#pragma once

#include "core/autograd/tape.h"
#include "core/kernels/attention/args.h"
#include "core/kernels/embedding/rope_frequencies.h"

namespace mantissa {

// qkv (B*T, (H + 2*KV) * D); sets shape.batch, and a shape.scale of 0 to 1 / sqrt(D). Returns (B*T, H*D):
// softmax(scale q k^T) v, with softmax and sums in fp32. Queries see the keys of their document, which `starts` has
// (core/kernels/documents.h), at most the last shape.window of them. Only qkv, the output and the log-sum-exp of each
// row are kept for the backward pass. With a cache of keys and values on the tape, the cache says what the rows are.
Var attention(Tape& tape, Var qkv, AttentionShape shape, const Tensor& starts = {});

// Rotary position embedding (Su et al. 2021), half-split pairs. qkv packed as for attention(). Rotates the query and
// key heads by their position and leaves the values unchanged. Positions count from the start of the row's document,
// which `starts` has (core/kernels/documents.h). In place if the caller moves in the only reference. head_dim is even.
Var rope(Tape& tape, Var qkv, const AttentionShape& shape, const RopeFrequencies& frequencies,
         const Tensor& starts = {});

}  // namespace mantissa
