// What the entry checks of kernels are made of: cheap comparisons; a message is formatted only when one fails.
#pragma once

#include <type_traits>

#include "core/base/check.h"
#include "core/kernels/kernel_args.h"

namespace mantissa {

inline void check_defined(const char* op, const char* what, const Tensor& tensor) {
  MANTISSA_CHECK(tensor.defined(), "[{}] {} must be given, got an undefined tensor", op, what);
}

inline void check_float(const char* op, const char* what, const Tensor& tensor) {
  check_defined(op, what, tensor);
  MANTISSA_CHECK(is_floating(tensor.dtype()), "[{}] {} must be fp32, bf16 or fp16, got {}", op, what, tensor.dtype());
}

inline void check_dtype(const char* op, const char* what, const Tensor& tensor, DType expected) {
  check_defined(op, what, tensor);
  MANTISSA_CHECK(tensor.dtype() == expected, "[{}] {} must be {}, got {}", op, what, expected, tensor.dtype());
}

// `dimensions` names the expected extents: check_shape("layer_norm", "weight", "(C)", weight, {c}).
inline void check_shape(const char* op, const char* what, const char* dimensions, const Tensor& tensor,
                        const Shape& expected) {
  MANTISSA_CHECK(tensor.shape() == expected, "[{}] {} must have shape {}={}, got {}", op, what, dimensions, expected,
                 tensor.shape());
}

inline void check_numel(const char* op, const char* what, const Tensor& tensor, int64_t expected) {
  MANTISSA_CHECK(tensor.numel() == expected, "[{}] {} must have {} elements, got shape {} with {}", op, what, expected,
                 tensor.shape(), tensor.numel());
}

inline Rows rows_of(const char* op, const char* what, const Tensor& tensor) {
  check_float(op, what, tensor);
  MANTISSA_CHECK(tensor.shape().rank() >= 1 && tensor.shape().last() > 0,
                 "[{}] {} must have a last axis of at least one element, got shape {}", op, what, tensor.shape());
  return {tensor.numel() / tensor.shape().last(), tensor.shape().last()};
}

// Of Backend::copy().
inline void check_copy_args(const Tensor& src, const Tensor& dst) {
  check_defined("copy", "src", src);
  check_dtype("copy", "dst", dst, src.dtype());
  check_numel("copy", "dst", dst, src.numel());
}

// A plain record kept in a tensor of bytes.
template <typename Record>
void check_record(const char* op, const char* what, const Tensor& tensor) {
  static_assert(std::is_trivially_copyable_v<Record>);
  check_dtype(op, what, tensor, DType::kU8);
  check_numel(op, what, tensor, static_cast<int64_t>(sizeof(Record)));
}

}  // namespace mantissa
