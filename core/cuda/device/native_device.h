// launch() on a GPU, see device.h, and conversion between storage types and fp32 by GPU instructions: rounds to
// nearest, ties to even; values beyond the range become Inf; NaN stays NaN.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "core/cuda/runtime/runtime.h"
#include "core/tensor/half.h"

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

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(BFloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ __forceinline__ float widen(Float16 value) { return __half2float(__ushort_as_half(value.bits)); }

template <typename T>
__device__ __forceinline__ T narrow(float value);
template <>
__device__ __forceinline__ float narrow<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ BFloat16 narrow<BFloat16>(float value) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
}
template <>
__device__ __forceinline__ Float16 narrow<Float16>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}

__device__ __forceinline__ unsigned float_bits(float value) { return __float_as_uint(value); }
__device__ __forceinline__ float float_from_bits(unsigned bits) { return __uint_as_float(bits); }

}  // namespace mantissa::cuda
