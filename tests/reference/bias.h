// Scalar references of addition and of a bias added to every row, whose gradient is the sum over rows.
#pragma once

#include <complex>
#include <cstddef>
#include <vector>

namespace mantissa::reference {

template <typename T>
std::vector<T> add(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> y(a.size());
  for (size_t i = 0; i < a.size(); ++i) y[i] = a[i] + b[i];
  return y;
}

template <typename T>
std::vector<T> add_bias(const std::vector<T>& x, const std::vector<T>& bias) {
  std::vector<T> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] + bias[i % bias.size()];
  return y;
}

template <typename T>
std::vector<T> column_sum(const std::vector<T>& x, size_t columns) {
  std::vector<T> sum(columns);
  for (size_t i = 0; i < x.size(); ++i) sum[i % columns] += x[i];
  return sum;
}

}  // namespace mantissa::reference
