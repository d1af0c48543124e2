// Status codes of the CUDA runtime as exceptions.
#pragma once

#include <driver_types.h>

namespace mantissa::cuda {

// CudaError naming the call unless `status` is success; OutOfDeviceMemory where that is the reason.
void check_cuda(cudaError_t status, const char* call);
// Likewise for a launch, naming the kernel.
void check_launch(cudaError_t status, const void* kernel);

}  // namespace mantissa::cuda
