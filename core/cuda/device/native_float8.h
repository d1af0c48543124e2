// 8-bit floats on a GPU: see device/float8.h.
#pragma once

#include <cuda_fp8.h>

#include "core/cuda/device/native_device.h"
#include "core/tensor/format.h"

namespace mantissa::cuda {

__device__ __forceinline__ float widen(Float8E4M3 value) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits, __NV_E4M3)));
}
__device__ __forceinline__ float widen(Float8E5M2 value) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits, __NV_E5M2)));
}

template <>
__device__ __forceinline__ Float8E4M3 narrow<Float8E4M3>(float value) {
  return {__nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E4M3)};
}
template <>
__device__ __forceinline__ Float8E5M2 narrow<Float8E5M2>(float value) {
  return {__nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E5M2)};
}

template <typename T>
__device__ __forceinline__ T narrow_saturated(float value);
template <>
__device__ __forceinline__ Float8E4M3 narrow_saturated<Float8E4M3>(float value) {
  return {__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3)};
}
template <>
__device__ __forceinline__ Float8E5M2 narrow_saturated<Float8E5M2>(float value) {
  return {__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2)};
}

}  // namespace mantissa::cuda
