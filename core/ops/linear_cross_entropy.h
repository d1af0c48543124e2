// linear_cross_entropy: a linear layer and its cross-entropy by chunks of rows, so that the logits of a large
// vocabulary never exist whole.
#pragma once

#include "core/ops/cross_entropy.h"

namespace mantissa {

// cross_entropy(linear(x, weight), targets) with room for the logits of `chunk_rows` rows only: x (R, K) float, weight
// (V, K), targets (R) i32 in [0, V) or kIgnoreIndex. The loss gradient is known before the forward pass, so each
// chunk's gradients are made while its logits are there: nothing is computed twice. In training, the weight's gradient
// is therefore written by this call already. Sums over rows (the loss, the weight's gradient) are added up chunk by
// chunk, in fp32. For a layer that rounds no operands.
LossOutput linear_cross_entropy(Tape& tape, const Var& x, Parameter& weight, const Tensor& targets, int64_t chunk_rows);

}  // namespace mantissa
