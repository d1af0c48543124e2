// Access to several neighbouring elements at once: 16 bytes if the addresses allow it, which a GPU needs to use its
// memory bandwidth.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mantissa::cuda {

constexpr int kAccessBytes = 16;

// The number of elements of the narrowest type that fill one access; the other types take several accesses.
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

}  // namespace mantissa::cuda
