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

#include "core/cuda/device/device.h"
#include "core/tensor/format.h"

#ifdef __CUDACC__
#include "core/cuda/device/native_float8.h"
#else
#include "core/cuda/emulation/float8.h"
#endif
