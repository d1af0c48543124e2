// RMS normalisation and its gradients.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void rms_norm_forward(const RmsNormForwardArgs& args, CudaStream& stream);
void rms_norm_backward(const RmsNormBackwardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
