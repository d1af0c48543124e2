// Adds up gradients and stores them.
#pragma once

#include "core/cuda/device/device.h"
#include "core/kernels/kernel_args.h"

namespace mantissa::cuda {

template <int Width>
__device__ __forceinline__ void add_values(const float (&values)[Width], float (&sum)[Width]) {
#pragma unroll
  for (int k = 0; k < Width; ++k) sum[k] += values[k];
}

// *to = sum, or *to += sum.
template <int Width>
__device__ __forceinline__ void put_gradient(float* to, float (&sum)[Width], GradientMode mode) {
  if (mode == GradientMode::kAccumulate) {
    float before[Width];
    load<Width>(to, before);
    add_values(before, sum);
  }
  store<Width>(to, sum);
}

}  // namespace mantissa::cuda
