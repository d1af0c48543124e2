// CUDA's device functions and variables that kernels use, on the host. Included by device/device.h only.
//
// Waiting functions know their call site, so that a deadlock can be reported and a missing wait can be tried.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "core/cuda/emulation/block.h"
#include "core/tensor/half.h"

// The names are CUDA's.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (::mantissa::cuda::emulation::Block::current().thread_index())
#define blockIdx (::mantissa::cuda::emulation::Block::current().block_index())
#define blockDim (::mantissa::cuda::emulation::Block::current().block_extent())
#define gridDim (::mantissa::cuda::emulation::Block::current().grid_extent())

using dim3 = mantissa::cuda::emulation::Extent3;

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  mantissa::cuda::emulation::Block::current().barrier({file, line});
}

inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  mantissa::cuda::emulation::Block::current().exchange(mask, nullptr, 0, {file, line});
}

namespace mantissa::cuda::emulation {

// The value that lane `source` handed in; waits until all lanes of the mask have handed in theirs.
template <typename T>
T take_from_lane(unsigned mask, T mine, int source, const char* file, int line) {
  const WarpSlots& slots = Block::current().exchange(mask, &mine, sizeof(T), {file, line});
  T theirs;
  std::memcpy(&theirs, slots[static_cast<size_t>(source)].data(), sizeof(T));
  return theirs;
}

inline unsigned ballot(unsigned mask, bool predicate, const char* file, int line) {
  const WarpSlots& slots = Block::current().exchange(mask, &predicate, sizeof(predicate), {file, line});
  unsigned result = 0;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1u) && slots[lane][0] != std::byte{0}) result |= 1u << lane;
  }
  return result;
}

}  // namespace mantissa::cuda::emulation

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
  const int lane = mantissa::cuda::emulation::Block::current().lane();
  return mantissa::cuda::emulation::take_from_lane(mask, value, lane / width * width + source % width, file, line);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  const int lane = mantissa::cuda::emulation::Block::current().lane();
  const int source = lane ^ lane_mask;
  return mantissa::cuda::emulation::take_from_lane(mask, value, source / width == lane / width ? source : lane, file,
                                                   line);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, const char* file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
  const int lane = mantissa::cuda::emulation::Block::current().lane();
  const int source = lane % width - static_cast<int>(delta);
  return mantissa::cuda::emulation::take_from_lane(mask, value, source >= 0 ? lane - static_cast<int>(delta) : lane,
                                                   file, line);
}

inline unsigned __ballot_sync(unsigned mask, bool predicate, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
  return mantissa::cuda::emulation::ballot(mask, predicate, file, line);
}

// One thread runs at a time: plain operations are atomic.
template <typename T>
T atomicAdd(T* address, T value) {
  const T old = *address;
  *address = old + value;
  return old;
}

template <typename T>
T atomicMax(T* address, T value) {
  const T old = *address;
  if (old < value) *address = value;
  return old;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
// The number of the lowest set bit, from 1; 0 if no bit is set.
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

namespace mantissa::cuda {

// Conversion between storage types and fp32: see device/native_device.h.
template <typename T>
float widen(T value) {
  return to_float(value);
}

template <typename T>
T narrow(float value) {
  return from_float<T>(value);
}

inline unsigned float_bits(float value) { return std::bit_cast<unsigned>(value); }
inline float float_from_bits(unsigned bits) { return std::bit_cast<float>(bits); }

}  // namespace mantissa::cuda
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
