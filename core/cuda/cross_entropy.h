// Cross-entropy loss over a vocabulary and its gradient, in place.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void cross_entropy_forward(const CrossEntropyForwardArgs& args, CudaStream& stream);
void cross_entropy_backward(const CrossEntropyBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
