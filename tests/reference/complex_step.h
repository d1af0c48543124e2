// Derivative by complex step: for an analytic f, f'(x) = Im f(x + ih) / h + O(h^2). Nothing is subtracted, so h = 1e-30
// loses no digits and the result is exact to rounding in double.
//
// Source: Squire & Trapp, "Using Complex Variables to Estimate Derivatives of Real Functions", SIAM Review 40(1), 1998.
#pragma once

#include <complex>
#include <cstddef>
#include <span>
#include <vector>

namespace mantissa::reference {

using Complex = std::complex<double>;

constexpr double kComplexStep = 1e-30;

inline std::vector<Complex> to_complex(std::span<const double> values) {
  return std::vector<Complex>(values.begin(), values.end());
}

// The gradient of `f`, a function of std::vector<Complex> to Complex, at the real point `x`: one evaluation per
// element. Make a scalar of a vector-valued op by projecting its output on fixed random numbers (see project()).
template <typename F>
std::vector<double> complex_step_gradient(std::span<const double> x, F&& f) {
  std::vector<Complex> point = to_complex(x);
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    point[i] = Complex(x[i], kComplexStep);
    gradient[i] = std::imag(Complex(f(point))) / kComplexStep;
    point[i] = x[i];
  }
  return gradient;
}

// sum_i y[i] * direction[i]: the scalar whose gradient with respect to y is `direction` (an op's dy).
template <typename T>
T project(const std::vector<T>& y, std::span<const double> direction) {
  T sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += y[i] * direction[i];
  return sum;
}

}  // namespace mantissa::reference
