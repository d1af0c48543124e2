// Scalar reference of ReLU^2, for double and std::complex<double>.
#pragma once

#include <complex>
#include <vector>

namespace mantissa::reference {

template <typename T>
std::vector<T> relu_squared_forward(const std::vector<T>& x) {
  std::vector<T> y;
  for (const T& value : x) y.push_back(std::real(value) < 0.0 ? T(0.0) : value * value);
  return y;
}

template <typename T>
std::vector<T> relu_squared_backward(const std::vector<T>& x, const std::vector<T>& dy) {
  std::vector<T> dx;
  for (size_t i = 0; i < x.size(); ++i) dx.push_back(std::real(x[i]) < 0.0 ? T(0.0) : 2.0 * x[i] * dy[i]);
  return dx;
}

}  // namespace mantissa::reference
