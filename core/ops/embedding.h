// embedding: token vector plus position vector, the start of the residual stream.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// tokens (R) i32, R a multiple of sequence_length, every token in [0, V); token_table (V, C); position_table
// (>= sequence_length, C) or nullptr. Returns (R, C): token_table[token] + position_table[position], in the dtype that
// the layer's precision gives to embeddings. Positions count from the start of the row's document, which `starts` has
// (core/kernels/documents.h); without it, from the start of its sequence.
Var embedding(Tape& tape, const Tensor& tokens, int64_t sequence_length, Parameter& token_table,
              Parameter* position_table, const Tensor& starts = {});

}  // namespace mantissa
