// cross_entropy: softmax cross-entropy with an ignored target, summed over the rest.
#pragma once

#include "core/autograd/tape.h"

namespace mantissa {

inline constexpr int32_t kIgnoreIndex = -100;  // as in PyTorch

// The loss of a batch, and of each of its rows.
struct LossOutput {
  Var sum;        // (1) fp32: sum over non-ignored rows of lse - logit[target], in nats
  Tensor losses;  // (R) fp32, 0 where ignored
};

// logits (R, V) float, targets (R) i32 in [0, V) or kIgnoreIndex. With a softcap c, c tanh(z / c) stands for each logit
// z (Gemma 2). Computed in fp32 whatever the logits' dtype. The backward pass overwrites the logits with the loss
// gradient * (softmax - onehot): no second copy exists, so the caller must not use the logits afterwards.
LossOutput cross_entropy(Tape& tape, Var logits, const Tensor& targets, float softcap = 0.0f);

}  // namespace mantissa
