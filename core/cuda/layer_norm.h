// Layer normalisation and its gradients.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void layer_norm_forward(const LayerNormForwardArgs& args, CudaStream& stream);
void layer_norm_backward(const LayerNormBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
