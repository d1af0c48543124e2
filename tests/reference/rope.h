// Scalar reference of rotary position embedding, for double and std::complex<double>.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <vector>

namespace mantissa::reference {

struct RopeShape {
  size_t sequence_length, row_heads, rotated_heads, head_dim;
  double base;
};

// direction +1 rotates forward, -1 back.
template <typename T>
std::vector<T> rope(const std::vector<T>& x, const RopeShape& shape, double direction) {
  std::vector<T> y = x;
  const size_t half = shape.head_dim / 2, columns = shape.row_heads * shape.head_dim;
  for (size_t row = 0; row < x.size() / columns; ++row) {
    for (size_t head = 0; head < shape.rotated_heads; ++head) {
      for (size_t i = 0; i < half; ++i) {
        const double frequency =
            std::pow(shape.base, -2.0 * static_cast<double>(i) / static_cast<double>(shape.head_dim));
        const double angle = direction * static_cast<double>(row % shape.sequence_length) * frequency;
        const size_t a = row * columns + head * shape.head_dim + i, b = a + half;
        y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
        y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
      }
    }
  }
  return y;
}

template <typename T>
std::vector<T> rope_forward(const std::vector<T>& x, const RopeShape& shape) {
  return rope(x, shape, 1.0);
}

template <typename T>
std::vector<T> rope_backward(const std::vector<T>& dy, const RopeShape& shape) {
  return rope(dy, shape, -1.0);
}

}  // namespace mantissa::reference
