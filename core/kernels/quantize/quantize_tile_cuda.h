// A tile of a matrix on its way to a low-precision format, in the registers of a block of eight warps: each warp has
// some of the rows, each lane four neighbouring columns of 128. The matrix is read once and written once.
#pragma once

#include "core/kernels/quantize/block_amax_cuda.h"
#include "core/quant/scales.h"

namespace mantissa::cuda {

constexpr int kTileWarps = 8, kTileThreads = kTileWarps * kLanes;
constexpr int kLaneColumns = 4, kTileColumns = kLanes * kLaneColumns;

// Operands of type From at elements from + i: a pointer, or AnyFloats. Width: how many are read and written at once, 1
// or kLaneColumns, which then divides the number of columns.
template <int kRows, int Width>
struct WarpTile {
  static constexpr int kTileRows = kTileWarps * kRows;

  float values[kRows][kLaneColumns];
  int64_t row, column;  // the first of the calling lane

  // Of a matrix.
  static unsigned count(int64_t rows, int64_t columns) {
    return static_cast<unsigned>((rows + kTileRows - 1) / kTileRows * ((columns + kTileColumns - 1) / kTileColumns));
  }

  // Tiles are numbered row by row.
  __device__ __forceinline__ WarpTile(int64_t tile, int64_t columns) {
    const int64_t across = (columns + kTileColumns - 1) / kTileColumns;
    const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
    row = tile / across * kTileRows + warp * kRows;
    column = tile % across * kTileColumns + lane * kLaneColumns;
  }

  // Of the tile.
  __device__ __forceinline__ int64_t first_row() const { return row - static_cast<int>(threadIdx.x) / kLanes * kRows; }
  __device__ __forceinline__ int64_t first_column() const {
    return column - static_cast<int>(threadIdx.x) % kLanes * kLaneColumns;
  }

  // What the matrix has not is 0.
  template <typename From>
  __device__ __forceinline__ void load_from(const From& from, int64_t rows, int64_t columns) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kLaneColumns; k += Width) {
        float part[Width] = {};
        if (row + r < rows && column + k < columns) load<Width>(from + ((row + r) * columns + column + k), part);
#pragma unroll
        for (int i = 0; i < Width; ++i) values[r][k + i] = part[i];
      }
    }
  }

  __device__ __forceinline__ uint32_t amax_of_row(int r) const {
    uint32_t amax = 0;
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) amax = MaxBits()(amax, magnitude_bits(values[r][k]));
    return amax;
  }
  __device__ __forceinline__ uint32_t amax_of_column(int k) const {
    uint32_t amax = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) amax = MaxBits()(amax, magnitude_bits(values[r][k]));
    return amax;
  }
  __device__ __forceinline__ int count_non_finite() const {
    int count = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kLaneColumns; ++k) count += non_finite(values[r][k]);
    }
    return count;
  }

  // to = round(values * before) * after, the factors being factors_of(r, k).
  template <typename Rounding, typename FactorsOf>
  __device__ __forceinline__ void store_rounded(BFloat16* to, int64_t rows, int64_t columns, const NarrowFormat& format,
                                                const Rounding& rounding, const FactorsOf& factors_of) const {
    auto place = rounding.rows_from(row);
#pragma unroll
    for (int r = 0; r < kRows; ++r, place = rounding.next(place)) {
#pragma unroll
      for (int k = 0; k < kLaneColumns; k += Width) {
        if (row + r >= rows || column + k >= columns) continue;
        float part[Width];
#pragma unroll
        for (int i = 0; i < Width; ++i) part[i] = values[r][k + i] * factors_of(r, k + i).before;
        rounding.round(format, place, column + k, part);
#pragma unroll
        for (int i = 0; i < Width; ++i) part[i] *= factors_of(r, k + i).after;
        store<Width>(to + ((row + r) * columns + column + k), part);
      }
    }
  }
};

// The largest over `lanes` neighbouring lanes, a power of two: in all of them.
__device__ __forceinline__ uint32_t max_over_lanes(uint32_t amax, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    amax = MaxBits()(amax, __shfl_xor_sync(kAllLanes, amax, distance));
  }
  return amax;
}

// Each of a lane's amaxes becomes the largest of this lane in kWarps neighbouring warps, all unless given. scratch:
// shared memory for one of every thread each.
template <int kWarps = kTileWarps, int kCount>
__device__ __forceinline__ void max_over_warps(uint32_t (&amaxes)[kCount], uint32_t* scratch) {
  // Of the first of these warps.
  const int thread =
      static_cast<int>(threadIdx.x) / (kWarps * kLanes) * (kWarps * kLanes) + static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int k = 0; k < kCount; ++k) scratch[k * kTileThreads + static_cast<int>(threadIdx.x)] = amaxes[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      amaxes[k] = MaxBits()(amaxes[k], scratch[k * kTileThreads + warp * kLanes + thread]);
    }
  }
}

}  // namespace mantissa::cuda
