// launch() on a GPU: see device/device.h.
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/runtime/check_cuda.h"
#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
};

template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchShape& shape, StreamHandle stream, Arguments&&... arguments) {
  constexpr size_t kWithoutAskingBytes = size_t{48} << 10;
  if (shape.shared_bytes > kWithoutAskingBytes) {
    check_launch(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.shared_bytes)),
        reinterpret_cast<const void*>(kernel));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  check_launch(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
               reinterpret_cast<const void*>(kernel));
}

// The dynamic shared memory of the block, as an array of T.
template <typename T>
__device__ __forceinline__ T* shared_memory() {
  extern __shared__ __align__(1024) unsigned char mantissa_shared_memory[];
  return reinterpret_cast<T*>(mantissa_shared_memory);
}

}  // namespace mantissa::cuda
