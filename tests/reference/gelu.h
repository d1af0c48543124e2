// Scalar reference of GELU in both forms, for double and std::complex<double>.
#pragma once

#include <cmath>
#include <complex>

#include "core/kernels/activation/args.h"

namespace mantissa::reference {

// The error function of a complex argument, an entire function: erf(z) = 2/sqrt(pi) e^(-z^2) sum_n 2^n z^(2n+1) /
// (2n+1)!! (Abramowitz & Stegun 7.1.6). On the real axis all terms have one sign, so nothing cancels.
inline std::complex<double> erf(std::complex<double> z) {
  std::complex<double> term = z, sum = z;
  for (int n = 1; n < 2000 && std::abs(term) > 1e-18 * std::abs(sum); ++n) {
    term *= 2.0 * z * z / (2.0 * n + 1.0);
    sum += term;
  }
  return 2.0 / std::sqrt(M_PI) * std::exp(-z * z) * sum;
}

inline std::complex<double> normal_cdf(std::complex<double> x) { return 0.5 * (1.0 + erf(x * M_SQRT1_2)); }
inline double normal_cdf(double x) { return 0.5 * std::erfc(-x * M_SQRT1_2); }

template <typename T>
T gelu(T x, GeluForm form) {
  if (form == GeluForm::kErf) return x * normal_cdf(x);
  const double k = std::sqrt(2.0 / M_PI);
  return 0.5 * x * (1.0 + std::tanh(k * (x + 0.044715 * x * x * x)));
}

// d gelu / dx, by hand.
template <typename T>
T gelu_derivative(T x, GeluForm form) {
  if (form == GeluForm::kErf) return normal_cdf(x) + x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * M_PI);
  const double k = std::sqrt(2.0 / M_PI);
  const T t = std::tanh(k * (x + 0.044715 * x * x * x));
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * k * (1.0 + 3.0 * 0.044715 * x * x);
}

}  // namespace mantissa::reference
