// Operands whose dtype is known only at run time, for kernels that are small or off the fast path. There, one kernel
// for each combination of dtypes would cost more than a branch that all threads take alike.
#pragma once

#include <cstddef>

#include "core/cuda/device/device.h"
#include "core/tensor/tensor.h"

namespace mantissa::cuda {

// Used like a T*: load<Width>(x + i, values), store<Width>(x + i, values).
struct AnyFloats {
  std::byte* data = nullptr;  // null: an undefined tensor
  DType dtype = DType::kF32;

  __device__ __forceinline__ AnyFloats operator+(int64_t elements) const {
    return {data + elements * (dtype == DType::kF32 ? 4 : 2), dtype};
  }
};

inline AnyFloats any_floats(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.raw(), tensor.dtype()};
}

template <int Width>
__device__ __forceinline__ void load(const AnyFloats& from, float (&to)[Width]) {
  if (from.dtype == DType::kF32) {
    load<Width>(reinterpret_cast<const float*>(from.data), to);
  } else if (from.dtype == DType::kBF16) {
    load<Width>(reinterpret_cast<const BFloat16*>(from.data), to);
  } else {
    load<Width>(reinterpret_cast<const Float16*>(from.data), to);
  }
}

template <int Width>
__device__ __forceinline__ void store(const AnyFloats& to, const float (&from)[Width]) {
  if (to.dtype == DType::kF32) {
    store<Width>(reinterpret_cast<float*>(to.data), from);
  } else if (to.dtype == DType::kBF16) {
    store<Width>(reinterpret_cast<BFloat16*>(to.data), from);
  } else {
    store<Width>(reinterpret_cast<Float16*>(to.data), from);
  }
}

}  // namespace mantissa::cuda
