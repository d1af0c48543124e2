// low_rank: the product of a low-rank adapter beside a linear layer, in full width.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

// The matrices of an adapter (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021), and its place in
// the rows of the layer's weight: a layer may hold several projections, packed.
struct LowRankMatrices {
  Parameter* down = nullptr;  // A (rank, K)
  Parameter* up = nullptr;    // B (n, rank)
  int64_t first_row = 0;      // the layer's output to which B's first row adds
  int64_t outputs = 0;        // N, of the layer
  float factor = 1.0f;        // alpha / rank
};

// x (R, K). Returns (R, N): factor * x A^T B^T in columns [first_row, first_row + n), and 0 in the others. Computes in
// the dtype of the layer's linear ops; operands are never rounded to 8 or 4 bits, which would save nothing here. Both
// products are summed in fp32 and rounded once; x A^T is multiplied by the factor before it is rounded again.
// ContractError on shapes that do not match.
Var low_rank(Tape& tape, Var x, const LowRankMatrices& adapter);

}  // namespace mantissa
