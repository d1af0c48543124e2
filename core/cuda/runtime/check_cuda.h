// Turns status codes of the CUDA runtime into exceptions.
#pragma once

#include <driver_types.h>

namespace mantissa::cuda {

// Throws CudaError naming `call` unless `status` is success; OutOfDeviceMemory for cudaErrorMemoryAllocation.
void check_cuda(cudaError_t status, const char* call);
// Throws CudaError naming the kernel unless `status`, of its launch, is success.
void check_launch(cudaError_t status, const void* kernel);

}  // namespace mantissa::cuda
