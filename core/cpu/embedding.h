// Token and position embedding and its gradients.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void embedding_forward(const EmbeddingForwardArgs& args);
void embedding_backward(const EmbeddingBackwardArgs& args);

}  // namespace mantissa::cpu
