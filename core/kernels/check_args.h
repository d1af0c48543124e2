// Building blocks of check_args(), cheap comparisons that format a message only on failure, and plain records in
// tensors of bytes.
#pragma once

#include <cstring>
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

inline void check_tensor(const char* op, const char* what, const Tensor& tensor, DType dtype, int64_t numel) {
  check_dtype(op, what, tensor, dtype);
  check_numel(op, what, tensor, numel);
}

inline void check_tensor(const char* op, const char* what, const Tensor& tensor, DType dtype, const char* dimensions,
                         const Shape& shape) {
  check_dtype(op, what, tensor, dtype);
  check_shape(op, what, dimensions, tensor, shape);
}

inline Rows rows_of(const char* op, const char* what, const Tensor& tensor) {
  check_float(op, what, tensor);
  MANTISSA_CHECK(tensor.shape().rank() >= 1 && tensor.shape().last() > 0,
                 "[{}] {} must have a last axis of at least one element, got shape {}", op, what, tensor.shape());
  return {tensor.numel() / tensor.shape().last(), tensor.shape().last()};
}

// For Backend::copy().
inline void check_copy_args(const Tensor& src, const Tensor& dst) {
  check_defined("copy", "src", src);
  check_tensor("copy", "dst", dst, src.dtype(), src.numel());
}

template <typename Record>
void check_record(const char* op, const char* what, const Tensor& tensor) {
  static_assert(std::is_trivially_copyable_v<Record>);
  check_tensor(op, what, tensor, DType::kU8, static_cast<int64_t>(sizeof(Record)));
}

// Any number of records, at least one. Returns the number.
template <typename Record>
int64_t check_records(const char* op, const char* what, const Tensor& tensor) {
  check_dtype(op, what, tensor, DType::kU8);
  const auto size = static_cast<int64_t>(sizeof(Record));
  MANTISSA_CHECK(tensor.numel() > 0 && tensor.numel() % size == 0,
                 "[{}] {} must hold whole records of {} bytes, at least one, got {} bytes", op, what, size,
                 tensor.numel());
  return tensor.numel() / size;
}

// Read and write a record in host memory, at any alignment. The tensor must have passed check_record().
template <typename Record>
Record read_record(const Tensor& tensor) {
  Record record;
  std::memcpy(&record, tensor.raw(), sizeof(record));
  return record;
}
template <typename Record>
void write_record(const Record& record, const Tensor& tensor) {
  std::memcpy(tensor.raw(), &record, sizeof(record));
}

}  // namespace mantissa
