// Softmax cross-entropy over logits and its gradient in place.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void cross_entropy_forward(const CrossEntropyForwardArgs& args);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args);

}  // namespace mantissa::cpu
