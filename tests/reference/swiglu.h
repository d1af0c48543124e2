// Scalar reference of SwiGLU, for double and std::complex<double>. Rows of x hold `features` gates, then as many ups.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <vector>

namespace mantissa::reference {

template <typename T>
T sigmoid(T x) {
  return 1.0 / (1.0 + std::exp(-x));
}

template <typename T>
std::vector<T> swiglu_forward(const std::vector<T>& x, size_t features) {
  std::vector<T> y(x.size() / 2);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t gate = i / features * 2 * features + i % features;
    y[i] = x[gate] * sigmoid(x[gate]) * x[gate + features];
  }
  return y;
}

template <typename T>
std::vector<T> swiglu_backward(const std::vector<T>& x, const std::vector<T>& dy, size_t features) {
  std::vector<T> dx(x.size());
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t gate = i / features * 2 * features + i % features;
    const T g = x[gate], s = sigmoid(g);
    dx[gate] = dy[i] * x[gate + features] * (s + g * s * (1.0 - s));
    dx[gate + features] = dy[i] * g * s;
  }
  return dx;
}

}  // namespace mantissa::reference
