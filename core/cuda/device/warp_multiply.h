// Products of one warp on tensor cores: the sums stay in its registers, and the right operand is a tile in shared
// memory.
#pragma once

#include "core/cuda/device/shared_tile.h"

namespace mantissa::cuda {

// The registers of one lane. A left operand is (kRowTiles * 16, 16); sums are (kRowTiles * 16, kColumnTiles * 8) in
// fp32.
template <int kRowTiles>
using LeftOperand = uint32_t[kRowTiles][4];
template <int kRowTiles, int kColumnTiles>
using Sums = float[kRowTiles][kColumnTiles][4];

// Loads columns [column, column + 16) of the kRowTiles * 16 rows from `row` on.
template <int kRowTiles, typename Tile>
__device__ __forceinline__ void load_left(LeftOperand<kRowTiles>& to, const Tile& tile, int row, int column) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) load_matrices(to[m], tile.by_columns(row + m * 16, column));
}

// sums += left (rows, 16) * right[0 ... n, column ... column + 15]^T
template <int kRowTiles, int kColumnTiles, typename Tile>
__device__ __forceinline__ void multiply_transposed(Sums<kRowTiles, kColumnTiles>& sums,
                                                    const LeftOperand<kRowTiles>& left, const Tile& right, int column) {
#pragma unroll
  for (int n = 0; n < kColumnTiles; n += 2) {
    uint32_t loaded[4];
    load_matrices(loaded, right.by_rows(n * 8, column));
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      mma<typename Tile::Element>(sums[m][n], left[m], loaded[0], loaded[1]);
      mma<typename Tile::Element>(sums[m][n + 1], left[m], loaded[2], loaded[3]);
    }
  }
}

// sums += left * right^T over all columns of both tiles; `left` from `row` on, `right` from its first row on.
template <int kRowTiles, int kColumnTiles, typename Tile>
__device__ __forceinline__ void multiply_transposed(Sums<kRowTiles, kColumnTiles>& sums, const Tile& left, int row,
                                                    const Tile& right) {
  // Unrolled by two only: if fully unrolled, the compiler hoists so many loads that sums are spilled.
#pragma unroll 2
  for (int column = 0; column < Tile::kColumns; column += 16) {
    LeftOperand<kRowTiles> loaded;
    load_left(loaded, left, row, column);
    multiply_transposed(sums, loaded, right, column);
  }
}

// Rounds sums to 16 bits as left operands of the next product: left[k] holds columns [16 k, 16 k + 16).
template <typename T, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void round_to_left(LeftOperand<kRowTiles> (&left)[kColumnTiles / 2],
                                              const Sums<kRowTiles, kColumnTiles>& sums) {
#pragma unroll
  for (int k = 0; k < kColumnTiles / 2; ++k) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&pair)[4] = sums[m][2 * k + i / 2];
        left[k][m][i] = pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
    }
  }
}

// sums += left * right, where `right` has kDepth * 16 rows.
template <int kRowTiles, int kColumnTiles, int kDepth, typename Tile>
__device__ __forceinline__ void multiply(Sums<kRowTiles, kColumnTiles>& sums,
                                         const LeftOperand<kRowTiles> (&left)[kDepth], const Tile& right) {
  static_assert(kColumnTiles * 8 == Tile::kColumns);
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; n += 2) {
      uint32_t loaded[4];
      load_matrices_transposed(loaded, right.by_columns(k * 16, n * 8));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mma<typename Tile::Element>(sums[m][n], left[k][m], loaded[0], loaded[1]);
        mma<typename Tile::Element>(sums[m][n + 1], left[k][m], loaded[2], loaded[3]);
      }
    }
  }
}

// Stores the sums, rounded, in the warp's own rows of `tile` from `row` on. Other lanes read them after __syncwarp().
template <int kRowTiles, int kColumnTiles, typename Tile>
__device__ __forceinline__ void store_sums(const Tile& tile, int row, const Sums<kRowTiles, kColumnTiles>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* chunk = reinterpret_cast<uint32_t*>(tile.chunk(row + m * 16 + half * 8 + lane / 4, n));
        chunk[lane % 4] = pack<typename Tile::Element>(sums[m][n][half * 2], sums[m][n][half * 2 + 1]);
      }
    }
  }
}

}  // namespace mantissa::cuda
