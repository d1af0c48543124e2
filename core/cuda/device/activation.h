// Elementary functions for activation kernels, in fp32. NaN gives NaN.
#pragma once

#include <cmath>

#include "core/cuda/device/device.h"

namespace mantissa::cuda {

// sigmoid(x) = 1 / (1 + e^-x) and its complement sigmoid(-x) = 1 - sigmoid(x). Both are accurate to a few ulp even
// where they are tiny: e^-|x| never overflows, and nothing is subtracted from 1.
struct SigmoidPair {
  float value, complement;
};

__device__ __forceinline__ SigmoidPair sigmoid(float x) {
  const float e = expf(-fabsf(x));
  const float large = 1.0f / (1.0f + e);
  const float small = e * large;
  return x < 0.0f ? SigmoidPair{small, large} : SigmoidPair{large, small};
}

// The standard normal distribution: cdf(x) = (1 + erf(x / sqrt 2)) / 2 and density(x) = e^(-x^2/2) / sqrt(2 pi).
//
// The tail Q(a) = 1 - cdf(a) = e^(-a^2/2) g(a), a = |x|; g is a polynomial in t = (a - 3) / (a + 3), the form of
// Shepherd & Laframboise, Math. Comp. 36, 1981. So one exponential serves both functions, and the lower tail keeps its
// relative accuracy where 1 + erf would cancel. Coefficients and error bound: core/cpu/simd_math-inl.h, which has the
// same polynomial for CPUs.
struct Normal {
  float cdf, density;
};

__device__ __forceinline__ Normal normal(float x) {
  const float a = fabsf(x);
  const float e = expf(x * x * -0.5f);
  const float bounded = a > 15.0f ? 15.0f : a;  // keeps NaN; beyond 15, e is 0
  const float t = (bounded - 3.0f) / (bounded + 3.0f);
  float g = 5.31619596771e-5f;
  g = fmaf(g, t, 1.1501344853e-4f);
  g = fmaf(g, t, -3.39013128003e-4f);
  g = fmaf(g, t, -9.83288017571e-4f);
  g = fmaf(g, t, 2.90438759248e-3f);
  g = fmaf(g, t, 6.13194222595e-3f);
  g = fmaf(g, t, -4.62132636749e-2f);
  g = fmaf(g, t, 1.23225041227e-1f);
  g = fmaf(g, t, -2.06402620407e-1f);
  g = fmaf(g, t, 1.21513947514e-1f);
  const float tail = e * g;
  return {x < 0.0f ? tail : 1.0f - tail, e * 0.398942280401432678f};
}

}  // namespace mantissa::cuda
