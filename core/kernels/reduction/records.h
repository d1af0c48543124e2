// Statistics of gradients, as a plain record.
#pragma once

#include <cstdint>

namespace mantissa {

// Findings of one pass over gradients. A plain record on the tensor's device.
struct TensorStats {
  static constexpr int64_t kNone = INT64_MAX;
  int64_t first_bad = kNone;  // smallest index of a NaN or Inf
  int64_t nan_count = 0;
  int64_t inf_count = 0;
  double sum_squares = 0.0;  // of finite and non-finite values alike
  bool operator==(const TensorStats&) const = default;
  constexpr TensorStats& operator+=(const TensorStats& other) {
    if (other.first_bad < first_bad) first_bad = other.first_bad;
    nan_count += other.nan_count;
    inf_count += other.inf_count;
    sum_squares += other.sum_squares;
    return *this;
  }
};

}  // namespace mantissa
