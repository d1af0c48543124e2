// Scalar reference of root-mean-square normalisation, for double and std::complex<double>.
#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

namespace mantissa::reference {

template <typename T>
struct RmsNormOutput {
  std::vector<T> y, rstd;
};

template <typename T>
RmsNormOutput<T> rms_norm_forward(const std::vector<T>& x, const std::vector<T>& weight, double epsilon) {
  const size_t columns = weight.size(), rows = x.size() / columns;
  RmsNormOutput<T> out{std::vector<T>(x.size()), std::vector<T>(rows)};
  for (size_t r = 0; r < rows; ++r) {
    const T* row = x.data() + r * columns;
    T squares = 0;
    for (size_t c = 0; c < columns; ++c) squares += row[c] * row[c];
    const T rstd = 1.0 / std::sqrt(squares / static_cast<double>(columns) + epsilon);
    for (size_t c = 0; c < columns; ++c) out.y[r * columns + c] = row[c] * rstd * weight[c];
    out.rstd[r] = rstd;
  }
  return out;
}

template <typename T>
struct RmsNormGradients {
  std::vector<T> dx, d_weight;
};

// With xhat = x rstd and g = weight dy: dx = rstd (g - xhat mean(g xhat)).
template <typename T>
RmsNormGradients<T> rms_norm_backward(const std::vector<T>& x, const std::vector<T>& dy, const std::vector<T>& weight,
                                      double epsilon) {
  const size_t columns = weight.size(), rows = x.size() / columns;
  const RmsNormOutput<T> forward = rms_norm_forward(x, weight, epsilon);
  RmsNormGradients<T> out{std::vector<T>(x.size()), std::vector<T>(columns)};
  for (size_t r = 0; r < rows; ++r) {
    const T rstd = forward.rstd[r];
    T mean_g_xhat = 0;
    for (size_t c = 0; c < columns; ++c) {
      const T xhat = x[r * columns + c] * rstd;
      mean_g_xhat += dy[r * columns + c] * weight[c] * xhat / static_cast<double>(columns);
      out.d_weight[c] += dy[r * columns + c] * xhat;
    }
    for (size_t c = 0; c < columns; ++c) {
      out.dx[r * columns + c] = rstd * (dy[r * columns + c] * weight[c] - x[r * columns + c] * rstd * mean_g_xhat);
    }
  }
  return out;
}

}  // namespace mantissa::reference
