// c = op(a) op(b), and activations of it, with everything that cuBLASLt asks of its operands.
#pragma once

#include "core/cuda/cublaslt/gemm_device.h"
#include "core/kernels/gemm/args.h"

namespace mantissa::cuda {

// CudaError naming the product if the library cannot compute it.
void multiply(GemmDevice& device, const GemmArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
