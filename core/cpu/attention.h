// Scaled dot-product attention on the CPU; the contracts are AttentionForwardArgs and AttentionBackwardArgs in
// core/backend/kernel_args.h.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void attention_forward(const AttentionForwardArgs& args);
void attention_backward(const AttentionBackwardArgs& args);

}  // namespace mantissa::cpu
