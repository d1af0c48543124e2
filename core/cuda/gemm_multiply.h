// c = op(a) op(b), and activations of it, with everything that cuBLASLt asks of its operands.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/gemm_device.h"

namespace mantissa::cuda {

// CudaError naming the product if the library cannot compute it.
void multiply(GemmDevice& device, const GemmArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
