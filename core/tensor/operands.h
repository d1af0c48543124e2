// How kernels take tensors: as rows, as addresses, and by their dtypes.
#pragma once

#include "core/tensor/tensor.h"

namespace mantissa {

enum class GradientMode : uint8_t { kWrite, kAccumulate };  // dx = ..., or dx += ...

// A tensor seen as a matrix by its last axis.
struct Rows {
  int64_t rows;
  int64_t columns;
};

// Address of an optional operand; null if it is undefined.
template <typename T>
T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}
inline std::byte* raw_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.raw() : nullptr; }

// dispatch() over two or three dtypes: calls f.template operator()<A, B>() or <A, B, C>().
template <typename F>
void dispatch(DType a, DType b, F&& f) {
  dispatch(a, [&]<typename A>() { dispatch(b, [&]<typename B>() { f.template operator()<A, B>(); }); });
}
template <typename F>
void dispatch(DType a, DType b, DType c, F&& f) {
  dispatch(a, b,
           [&]<typename A, typename B>() { dispatch(c, [&]<typename C>() { f.template operator()<A, B, C>(); }); });
}

}  // namespace mantissa
