// Scaled dot-product attention by blocks, forward and backward.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void attention_forward(const AttentionForwardArgs& args, CudaStream& stream);
void attention_backward(const AttentionBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
