// Sums and maxima over the lanes of a warp and the threads of a block, in a fixed order: the same bits in every run.
#pragma once

#include <cstdint>

namespace mantissa::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kLanes = 32;

struct Sum {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

// NaN wins, because a maximum must not hide it.
struct Max {
  __device__ __forceinline__ float operator()(float a, float b) const { return a > b || a != a ? a : b; }
};

// Maximum of magnitude_bits(): integers, whose maximum keeps every NaN.
struct MaxBits {
  __device__ __forceinline__ uint32_t operator()(uint32_t a, uint32_t b) const { return a < b ? b : a; }
};

// CUDA has no atomicAdd for int64_t; unsigned long long has the same size and representation.
__device__ __forceinline__ void atomic_add(int64_t* total, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(total), static_cast<unsigned long long>(value));
}

// The result is in every lane. All 32 lanes must take part.
template <typename Op, typename T>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// The result is in every thread. `scratch` is shared memory for one T a warp; all threads of the block must take part,
// and their number (blockDim.x) must be a multiple of 32. Ends with a barrier: scratch can be used again at once.
template <typename Op, typename T>
__device__ __forceinline__ T block_reduce(T value, Op op, T* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warps = static_cast<int>(blockDim.x) / kLanes;
  value = warp_reduce(value, op);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  T total = scratch[0];
  for (int other = 1; other < warps; ++other) total = op(total, scratch[other]);
  __syncthreads();
  return total;
}

}  // namespace mantissa::cuda
