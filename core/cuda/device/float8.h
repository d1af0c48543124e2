// 8-bit floats in kernels, in addition to the 16-bit ones of device.h:
//
//   float widen(T value);
//       Exact. NaN stays NaN.
//   T narrow<T>(float value);
//       Nearest, ties to the even code. Values beyond the range become Inf (NaN in e4m3, which has no Inf).
//   T narrow_saturated<T>(float value);
//       Values beyond the range, Inf included, become the largest finite value. That hides overflow: count non-finite
//       values before. NaN stays NaN.
//
// T = Float8E4M3 or Float8E5M2. nvcc uses CUDA's conversions, which are instructions from sm_89 on. A C++ compiler uses
// those of core/tensor/format.h.
#pragma once

#ifdef __CUDACC__
#include <cuda_fp8.h>
#endif

#include "core/cuda/device/device.h"
#include "core/tensor/format.h"

namespace mantissa::cuda {

template <typename T>
__device__ __forceinline__ T narrow_saturated(float value);

#ifdef __CUDACC__

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

template <>
__device__ __forceinline__ Float8E4M3 narrow_saturated<Float8E4M3>(float value) {
  return {__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3)};
}
template <>
__device__ __forceinline__ Float8E5M2 narrow_saturated<Float8E5M2>(float value) {
  return {__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2)};
}

#else

inline float widen(Float8E4M3 value) { return decode(Format::kE4M3, value.bits); }
inline float widen(Float8E5M2 value) { return decode(Format::kE5M2, value.bits); }

template <>
inline Float8E4M3 narrow<Float8E4M3>(float value) {
  return {static_cast<uint8_t>(encode(Format::kE4M3, value, Saturation::kNo))};
}
template <>
inline Float8E5M2 narrow<Float8E5M2>(float value) {
  return {static_cast<uint8_t>(encode(Format::kE5M2, value, Saturation::kNo))};
}

template <>
inline Float8E4M3 narrow_saturated<Float8E4M3>(float value) {
  return {static_cast<uint8_t>(encode(Format::kE4M3, value, Saturation::kYes))};
}
template <>
inline Float8E5M2 narrow_saturated<Float8E5M2>(float value) {
  return {static_cast<uint8_t>(encode(Format::kE5M2, value, Saturation::kYes))};
}

#endif

}  // namespace mantissa::cuda
