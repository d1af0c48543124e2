// Scalar reference of rotary position embedding, for double and std::complex<double>.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mantissa::reference {

enum class RopeRule { kPlain, kLinear, kLlama3 };

struct RopeShape {
  size_t sequence_length, row_heads, rotated_heads, head_dim;
  double base;
  RopeRule rule = RopeRule::kPlain;
  double factor = 1.0, low = 1.0, high = 4.0, context = 8192.0;

  double frequency(size_t pair) const {
    const double plain = std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(head_dim));
    if (rule == RopeRule::kPlain) return plain;
    if (rule == RopeRule::kLinear) return plain / factor;
    const double wavelength = 2.0 * std::acos(-1.0) / plain;
    if (wavelength < context / high) return plain;
    if (wavelength > context / low) return plain / factor;
    const double s = (context / wavelength - low) / (high - low);
    return plain * ((1.0 - s) / factor + s);
  }
};

// direction +1 rotates forward, -1 back. Without starts, each sequence is one document.
template <typename T>
std::vector<T> rope(const std::vector<T>& x, const RopeShape& shape, double direction,
                    const std::vector<int32_t>& starts = {}) {
  std::vector<T> y = x;
  const size_t half = shape.head_dim / 2, columns = shape.row_heads * shape.head_dim;
  for (size_t row = 0; row < x.size() / columns; ++row) {
    const double position = static_cast<double>(row % shape.sequence_length) - (starts.empty() ? 0.0 : starts[row]);
    for (size_t head = 0; head < shape.rotated_heads; ++head) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = direction * position * shape.frequency(i);
        const size_t a = row * columns + head * shape.head_dim + i, b = a + half;
        y[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
        y[b] = x[b] * std::cos(angle) + x[a] * std::sin(angle);
      }
    }
  }
  return y;
}

template <typename T>
std::vector<T> rope_forward(const std::vector<T>& x, const RopeShape& shape, const std::vector<int32_t>& starts = {}) {
  return rope(x, shape, 1.0, starts);
}

template <typename T>
std::vector<T> rope_backward(const std::vector<T>& dy, const RopeShape& shape,
                             const std::vector<int32_t>& starts = {}) {
  return rope(dy, shape, -1.0, starts);
}

}  // namespace mantissa::reference
