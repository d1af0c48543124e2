// Token and position embedding and its gradients.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void embedding_forward(const EmbeddingForwardArgs& args, CudaStream& stream);
void embedding_backward(const EmbeddingBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
