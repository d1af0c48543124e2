// Scalar reference of layer norm and RMS norm, for double and std::complex<double>. Rows of `columns` elements.
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <vector>

#include "core/kernels/norm/args.h"

namespace mantissa::reference {

struct NormFormula {
  Norm norm;
  double epsilon;
};

template <typename T>
struct NormOutput {
  std::vector<T> y, mean, rstd;  // mean 0 in RMS norm
};

// An empty bias means none.
template <typename T>
NormOutput<T> norm_forward(const NormFormula& formula, const std::vector<T>& x, const std::vector<T>& weight,
                           const std::vector<T>& bias = {}) {
  const size_t columns = weight.size(), rows = x.size() / columns;
  const double n = static_cast<double>(columns);
  NormOutput<T> out{std::vector<T>(x.size()), std::vector<T>(rows), std::vector<T>(rows)};
  for (size_t r = 0; r < rows; ++r) {
    const T* row = x.data() + r * columns;
    T sum = 0, squares = 0;
    for (size_t c = 0; c < columns; ++c) sum += row[c];
    const T mean = formula.norm == Norm::kLayer ? sum / n : T(0);
    for (size_t c = 0; c < columns; ++c) squares += (row[c] - mean) * (row[c] - mean);
    const T rstd = 1.0 / std::sqrt(squares / n + formula.epsilon);
    for (size_t c = 0; c < columns; ++c) {
      out.y[r * columns + c] = (row[c] - mean) * rstd * weight[c] + (bias.empty() ? T(0) : bias[c]);
    }
    out.mean[r] = mean;
    out.rstd[r] = rstd;
  }
  return out;
}

template <typename T>
struct NormGradients {
  std::vector<T> dx, d_weight, d_bias;
};

// With xhat = (x - mean) rstd and g = weight dy: dx = rstd (g - mean(g) - xhat mean(g xhat)), without mean(g) in RMS
// norm.
template <typename T>
NormGradients<T> norm_backward(const NormFormula& formula, const std::vector<T>& x, const std::vector<T>& dy,
                               const std::vector<T>& weight) {
  const size_t columns = weight.size(), rows = x.size() / columns;
  const double n = static_cast<double>(columns);
  const NormOutput<T> forward = norm_forward(formula, x, weight);
  NormGradients<T> out{std::vector<T>(x.size()), std::vector<T>(columns), std::vector<T>(columns)};
  for (size_t r = 0; r < rows; ++r) {
    const T mean = forward.mean[r], rstd = forward.rstd[r];
    T mean_g = 0, mean_g_xhat = 0;
    for (size_t c = 0; c < columns; ++c) {
      const T d = dy[r * columns + c], xhat = (x[r * columns + c] - mean) * rstd;
      if (formula.norm == Norm::kLayer) mean_g += d * weight[c] / n;
      mean_g_xhat += d * weight[c] * xhat / n;
      out.d_weight[c] += d * xhat;
      out.d_bias[c] += d;
    }
    for (size_t c = 0; c < columns; ++c) {
      const T xhat = (x[r * columns + c] - mean) * rstd;
      out.dx[r * columns + c] = rstd * (dy[r * columns + c] * weight[c] - mean_g - xhat * mean_g_xhat);
    }
  }
  return out;
}

}  // namespace mantissa::reference
