// GELU's value, exact in double even in the lower tail, and the magnitudes that its internal roundings act on.
#pragma once

#include <cmath>

#include "tests/reference/gelu.h"

namespace mantissa::kernel_test {

constexpr GeluForm kGeluForms[] = {GeluForm::kTanh, GeluForm::kErf};

// x s(2u) instead of x/2 (1 + tanh u): equal, but without cancellation where tanh is near -1.
inline double gelu_value(double x, GeluForm form) {
  if (form == GeluForm::kErf) return reference::gelu(x, form);
  return x / (1.0 + std::exp(-2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Condition of the lower tail: the exponent z of e^z is rounded, which costs |z| units; z = 2u (tanh) or x^2 / 2 (erf).
inline double gelu_tail_condition(double x, GeluForm form) {
  const double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
  return 1.0 + (form == GeluForm::kTanh ? std::abs(2.0 * u) : 0.5 * x * x);
}

// The sum of the absolute values of the derivative's two terms: the Phi-like factor, and x times its slope.
inline double gelu_derivative_terms(double x, GeluForm form) {
  if (form == GeluForm::kErf) {
    return reference::normal_cdf(x) + std::abs(x) * std::exp(-0.5 * x * x) / std::sqrt(2.0 * M_PI);
  }
  const double two_u = 2.0 * std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
  const double s = 1.0 / (1.0 + std::exp(-two_u)), complement = 1.0 / (1.0 + std::exp(two_u));
  return s + std::abs(x) * s * complement * 2.0 * std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

}  // namespace mantissa::kernel_test
