// Scalar references of matrix multiplication and of the linear layer y = x W^T + bias, x (R, K), W (N, K).
#pragma once

#include <complex>
#include <cstddef>
#include <vector>

namespace mantissa::reference {

struct MatmulShape {
  size_t m, n, k;
  bool trans_a = false;  // a is stored (K, M)
  bool trans_b = false;  // b is stored (N, K)

  size_t a_index(size_t i, size_t l) const { return trans_a ? l * m + i : i * k + l; }
  size_t b_index(size_t l, size_t j) const { return trans_b ? j * k + l : l * n + j; }
};

// c (M, N) = op(a) (M, K) op(b) (K, N).
template <typename T>
std::vector<T> matmul(const std::vector<T>& a, const std::vector<T>& b, const MatmulShape& shape) {
  std::vector<T> c(shape.m * shape.n);
  for (size_t i = 0; i < shape.m; ++i) {
    for (size_t l = 0; l < shape.k; ++l) {
      const T a_value = a[shape.a_index(i, l)];
      for (size_t j = 0; j < shape.n; ++j) c[i * shape.n + j] += a_value * b[shape.b_index(l, j)];
    }
  }
  return c;
}

template <typename T>
std::vector<T> linear_forward(const std::vector<T>& x, const std::vector<T>& weight, const std::vector<T>& bias,
                              size_t rows) {
  const size_t n = bias.size(), k = weight.size() / n;
  std::vector<T> y = matmul(x, weight, {rows, n, k, false, true});
  for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % n];
  return y;
}

template <typename T>
struct LinearGradients {
  std::vector<T> dx, d_weight, d_bias;
};

template <typename T>
LinearGradients<T> linear_backward(const std::vector<T>& x, const std::vector<T>& weight, const std::vector<T>& dy,
                                   size_t rows) {
  const size_t n = dy.size() / rows, k = weight.size() / n;
  LinearGradients<T> gradients{matmul(dy, weight, {rows, k, n}), matmul(dy, x, {n, k, rows, true, false}),
                               std::vector<T>(n)};
  for (size_t i = 0; i < dy.size(); ++i) gradients.d_bias[i % n] += dy[i];
  return gradients;
}

}  // namespace mantissa::reference
