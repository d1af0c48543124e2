// Common parts of the kernels of both norms: the threads that process a row, and each thread's part of the row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/cuda/device/device.h"
#include "core/kernels/norm/args.h"

namespace mantissa::cuda {

// The threads of one row: a warp, with blockDim.y warps in the block, or the whole block. The choice, and so the order
// of every sum, depends on the number of columns alone.
template <int kSums>
class RowTeam {
 public:
  // Shared memory for teams of this many threads.
  static constexpr size_t scratch_bytes(unsigned threads) {
    return threads == kLanes ? 0 : 2 * kSums * (threads / kLanes) * sizeof(float);
  }

  __device__ __forceinline__ explicit RowTeam(float* scratch) : scratch_(scratch) {}

  // Sums over the team, in a fixed order, in every thread. All threads of the team must take part.
  __device__ __forceinline__ void sum(float (&values)[kSums]) {
#pragma unroll
    for (float& value : values) value = warp_reduce(value, Sum());
    if (blockDim.x == kLanes) return;
    const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
    const int warps = static_cast<int>(blockDim.x) / kLanes;
    // Two halves in turn: a thread already at the next sum overwrites nothing that others still read. So one barrier a
    // sum is enough.
    float* const half = scratch_ + odd_ * kSums * warps;
    odd_ ^= 1;
    if (lane == 0) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) half[i * warps + warp] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSums; ++i) values[i] = warp_reduce(lane < warps ? half[i * warps + lane] : 0.0f, Sum());
  }

 private:
  float* scratch_;
  int odd_ = 0;
};

// A thread's part of a row, read once: vectors of Width neighbouring columns, blockDim.x vectors apart. The number of
// columns is a multiple of Width and at most blockDim.x * Width * Vectors.
template <typename X, int Width, int Vectors>
class RowInRegisters {
 public:
  __device__ __forceinline__ RowInRegisters(X row, int64_t columns) : columns_(static_cast<int>(columns)) {
#pragma unroll
    for (int k = 0; k < Vectors; ++k) {
      if (column(k) < columns_) load<Width>(row + column(k), values_[k]);
    }
  }

  // The row becomes row + residual, rounded to T and written to `sum`.
  template <typename R, typename T>
  __device__ __forceinline__ void add(R residual, T* sum) {
    float addends[Vectors][Width] = {};
#pragma unroll
    for (int k = 0; k < Vectors; ++k) {  // all loads first
      if (column(k) < columns_) load<Width>(residual + column(k), addends[k]);
    }
#pragma unroll
    for (int k = 0; k < Vectors; ++k) {
      if (column(k) >= columns_) continue;
#pragma unroll
      for (int i = 0; i < Width; ++i) values_[k][i] = widen(narrow<T>(values_[k][i] + addends[k][i]));
      store<Width>(sum + column(k), values_[k]);
    }
  }

  // f(column, values) for each of the thread's vectors; values is a float (&)[Width].
  template <typename F>
  __device__ __forceinline__ void for_each(F f) const {
#pragma unroll
    for (int k = 0; k < Vectors; ++k) {
      if (column(k) < columns_) f(column(k), values_[k]);
    }
  }

 private:
  __device__ __forceinline__ int column(int k) const {
    return static_cast<int>(threadIdx.x + static_cast<unsigned>(k) * blockDim.x) * Width;
  }

  const int columns_;
  float values_[Vectors][Width];
};

// For a row that is too long for registers or not aligned: column by column, read again on every pass (mostly from the
// caches).
class RowInMemory {
 public:
  __device__ __forceinline__ RowInMemory(const AnyFloats& row, int64_t columns) : row_(row), columns_(columns) {}

  // Later passes read the sum; each thread only what it wrote itself.
  __device__ __forceinline__ void add(const AnyFloats& residual, const AnyFloats& sum) {
    for (int64_t column = threadIdx.x; column < columns_; column += blockDim.x) {
      float values[1], addend[1];
      load<1>(row_ + column, values);
      load<1>(residual + column, addend);
      values[0] += addend[0];
      store<1>(sum + column, values);
    }
    row_ = sum;
  }

  template <typename F>
  __device__ __forceinline__ void for_each(F f) const {
    for (int64_t column = threadIdx.x; column < columns_; column += blockDim.x) {
      float values[1];
      load<1>(row_ + column, values);
      f(column, values);
    }
  }

 private:
  AnyFloats row_;
  const int64_t columns_;
};

// The number of threads, in whole warps and at most `limit`, for a row with this many columns for each.
inline unsigned team_threads(int64_t columns, int64_t columns_per_thread, int64_t limit) {
  return static_cast<unsigned>(std::min(round_up(divide_up(columns, columns_per_thread), kLanes), limit));
}

// T* for a typed operand, AnyFloats for one whose dtype is known at run time only.
template <typename T>
struct OperandOf {
  using Type = T*;
  static Type of(const Tensor& tensor) { return tensor.data<T>(); }
};
template <>
struct OperandOf<AnyFloats> {
  using Type = AnyFloats;
  static Type of(const Tensor& tensor) { return any_floats(tensor); }
};

}  // namespace mantissa::cuda
