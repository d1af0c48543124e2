// GELU and its derivative.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void gelu_forward(const GeluForwardArgs& args, CudaStream& stream);
void gelu_backward(const GeluBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
