// linear_cross_entropy: a linear layer and its cross-entropy in chunks of rows, so that the full logits of a large
// vocabulary are never stored.
#pragma once

#include "core/ops/cross_entropy.h"

namespace mantissa {

// cross_entropy(linear(x, weight), targets), with memory for the logits of only `chunk_rows` rows. x (R, K) float,
// weight (V, K), targets (R) i32 in [0, V) or kIgnoreIndex. The loss gradient is known before the forward pass, so each
// chunk's gradients are computed while its logits exist: nothing is computed twice. In training, this call therefore
// already writes the weight's gradient. Sums over rows (the loss, the weight's gradient) are accumulated chunk by
// chunk, in fp32. ContractError for a layer that rounds operands.
LossOutput linear_cross_entropy(Tape& tape, const Var& x, Parameter& weight, const Tensor& targets, int64_t chunk_rows);

}  // namespace mantissa
