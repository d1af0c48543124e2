// rope: rotary position embedding of queries and keys (Su et al. 2021), half-split pairs.
#pragma once

#include "core/autograd/tape.h"
#include "core/ops/attention.h"

namespace mantissa {

// qkv packed as for attention(). Rotates the query and key heads by their position and leaves the values unchanged.
// Works in place if the caller moves in the only reference, else on a copy. head_dim must be even.
Var rope(Tape& tape, Var qkv, const AttentionShape& shape, float base);

}  // namespace mantissa
