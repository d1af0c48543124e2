// Conversion between storage types and fp32 by GPU instructions. Round to nearest, ties to even; values beyond the
// range become Inf; NaN stays NaN.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/tensor/half.h"

namespace mantissa::cuda {

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
