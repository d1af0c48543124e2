// Bytes of operands that may be absent, and of those that are accumulated into.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa {

inline double bytes_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<double>(tensor.size_bytes()) : 0.0;
}

// Of several.
template <typename... Tensors>
double bytes_of(const Tensor& first, const Tensors&... others) {
  return bytes_of(first) + (bytes_of(others) + ...);
}

// Of a result: kAccumulate reads it before it is written.
inline double result_bytes(const Tensor& tensor, GradientMode mode) {
  return bytes_of(tensor) * (mode == GradientMode::kAccumulate ? 2.0 : 1.0);
}

}  // namespace mantissa
