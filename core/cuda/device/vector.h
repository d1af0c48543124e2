// Access to several neighbouring elements at once: 16 bytes if the addresses allow it, which a GPU needs to use its
// memory bandwidth.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/tensor/tensor.h"

namespace mantissa::cuda {

constexpr int kAccessBytes = 16;

// Elements of the narrowest type in one access; wider types take several accesses.
template <typename... T>
constexpr int kVectorWidth = kAccessBytes / static_cast<int>(std::min({sizeof(T)...}));

template <typename T, int Width>
struct alignas(std::min<size_t>(sizeof(T) * Width, kAccessBytes)) Vector {
  T values[Width];
};

// Loads `Width` elements as fp32. The address must be a multiple of 16 bytes, or of sizeof(T) if Width is 1.
template <int Width, typename T>
__device__ __forceinline__ void load(const T* from, float (&to)[Width]) {
  const auto packed = *reinterpret_cast<const Vector<T, Width>*>(from);
#pragma unroll
  for (int i = 0; i < Width; ++i) to[i] = widen(packed.values[i]);
}

// Stores `Width` elements, rounded to T; the address as in load().
template <int Width, typename T>
__device__ __forceinline__ void store(T* to, const float (&from)[Width]) {
  Vector<T, Width> packed;
#pragma unroll
  for (int i = 0; i < Width; ++i) packed.values[i] = narrow<T>(from[i]);
  *reinterpret_cast<Vector<T, Width>*>(to) = packed;
}

// Whether all addresses allow 16-byte accesses.
template <typename... T>
bool all_aligned(const T*... addresses) {
  return ((reinterpret_cast<uintptr_t>(addresses) % kAccessBytes == 0) && ...);
}

// An operand whose dtype is known only at run time, for kernels that are small or off the fast path. There, one kernel
// for each combination of dtypes would cost more than a branch that all threads take alike. Used like a T*:
// load<Width>(x + i, values), store<Width>(x + i, values).
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

template <int Width>
__device__ __forceinline__ void add_values(const float (&values)[Width], float (&sum)[Width]) {
#pragma unroll
  for (int k = 0; k < Width; ++k) sum[k] += values[k];
}

// *to = sum, or *to += sum. To: float* or AnyFloats.
template <int Width, typename To>
__device__ __forceinline__ void put_gradient(const To& to, float (&sum)[Width], GradientMode mode) {
  if (mode == GradientMode::kAccumulate) {
    float before[Width];
    load<Width>(to, before);
    add_values(before, sum);
  }
  store<Width>(to, sum);
}

}  // namespace mantissa::cuda
