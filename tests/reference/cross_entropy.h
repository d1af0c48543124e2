// Scalar reference of softmax cross-entropy, for double and std::complex<double>.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

namespace mantissa::reference {

// The largest real part is subtracted as a constant, so the function stays analytic.
template <typename T>
T log_sum_exp(const T* logits, size_t columns) {
  double largest = -std::numeric_limits<double>::infinity();
  for (size_t c = 0; c < columns; ++c) largest = std::max(largest, std::real(logits[c]));
  T sum = 0;
  for (size_t c = 0; c < columns; ++c) sum += std::exp(logits[c] - largest);
  return largest + std::log(sum);
}

template <typename T>
std::vector<T> cross_entropy_forward(const std::vector<T>& logits, const std::vector<int32_t>& targets,
                                     int32_t ignore_index) {
  const size_t columns = logits.size() / targets.size();
  std::vector<T> losses(targets.size());
  for (size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] == ignore_index) continue;
    const T* row = logits.data() + r * columns;
    losses[r] = log_sum_exp(row, columns) - row[targets[r]];
  }
  return losses;
}

// Gradient of scale * (sum of losses): scale * (softmax - onehot).
template <typename T>
std::vector<T> cross_entropy_backward(const std::vector<T>& logits, const std::vector<int32_t>& targets,
                                      int32_t ignore_index, double scale) {
  const size_t columns = logits.size() / targets.size();
  std::vector<T> gradient(logits.size());
  for (size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] == ignore_index) continue;
    const T* row = logits.data() + r * columns;
    const T lse = log_sum_exp(row, columns);
    for (size_t c = 0; c < columns; ++c) {
      const double one = static_cast<size_t>(targets[r]) == c ? 1.0 : 0.0;
      gradient[r * columns + c] = scale * (std::exp(row[c] - lse) - one);
    }
  }
  return gradient;
}

}  // namespace mantissa::reference
