// 8-bit floats in kernels, next to the 16-bit ones of device.h:
//
//   float widen(T value);
//       Exact. NaN stays NaN.
//   T narrow<T>(float value);
//       Nearest, ties to the even code. Beyond the range Inf, or NaN in e4m3, which has no Inf.
//   T narrow_saturated<T>(float value);
//       Beyond the range, and for Inf, the largest finite value. That hides overflow: what is not finite must be
//       counted before. NaN stays NaN.
//
// T = Float8E4M3 or Float8E5M2. Under nvcc CUDA's own conversions, which are instructions from sm_89 on; under a C++
// compiler those of core/tensor/format.h.
#pragma once

#include "core/cuda/device/device.h"
#include "core/tensor/float8.h"

#ifdef __CUDACC__
#include "core/cuda/device/native_float8.h"
#else
#include "core/cuda/emulation/float8.h"
#endif
