// SwiGLU and its derivative.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void swiglu_forward(const SwigluForwardArgs& args, CudaStream& stream);
void swiglu_backward(const SwigluBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
