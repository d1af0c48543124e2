// Products of one warp on tensor cores: the sums stay in its registers, and the right operand is a tile in shared
// memory.
//
// A row of a tile is divided into chunks of 16 bytes, the unit of copies and of load_matrices. The row's number
// permutes its chunks, so that the same chunk of eight neighbouring rows lies in eight different groups of banks. So
// accesses have no bank conflicts and need no padding.
#pragma once

#include "core/cuda/device/device.h"
#include "core/cuda/device/mma.h"

namespace mantissa::cuda {

// A tile of a 16-bit matrix in shared memory.
template <typename T, int kTileColumns>
struct SharedTile {
  using Element = T;
  static_assert(sizeof(T) == 2 && kTileColumns % 32 == 0, "the permutation takes whole multiples of four chunks");
  static constexpr int kColumns = kTileColumns;
  static constexpr int kChunkElements = kAccessBytes / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kColumns / kChunkElements;

  static constexpr int elements(int rows) { return rows * kColumns; }

  __device__ __forceinline__ T* chunk(int row, int index) const {
    return data + row * kColumns + (index ^ permutation(row)) * kChunkElements;
  }

  // The address that the calling lane gives to load_matrices for 16 x 16 elements from (row, column) on; row must be a
  // multiple of 8, column of 16. The four 8 x 8 matrices are ordered by columns (top left, bottom left, top right,
  // bottom right) or by rows.
  __device__ __forceinline__ const T* by_columns(int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    return displaced(lane % 16, lane / 16, row, column);
  }
  __device__ __forceinline__ const T* by_rows(int row, int column) const {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    return displaced(lane / 16 * 8 + lane % 8, lane / 8 % 2, row, column);
  }

  T* data;  // as aligned as the block's shared memory

 private:
  // Chunks are permuted within groups of this size. Rows of a multiple of eight chunks all begin in the same banks;
  // other rows begin alternately in one half of the banks and the other.
  static constexpr int kGroup = kChunks % 8 == 0 ? 8 : 4;

  __device__ static constexpr int permutation(int row) { return kGroup == 8 ? row & 7 : row >> 1 & 3; }

  // Equals chunk(lane_row + row, lane_chunk + column / kChunkElements), with a part that depends only on the lane. The
  // whole address would be loop-invariant, too, but there are dozens of them, and the compiler would keep all in
  // registers.
  __device__ __forceinline__ const T* displaced(int lane_row, int lane_chunk, int row, int column) const {
    constexpr int kGroupElements = kGroup * kChunkElements;
    const int of_lane = computed_here(lane_row * kColumns + (lane_chunk ^ permutation(lane_row)) * kChunkElements);
    return data + ((of_lane ^ column % kGroupElements) + column / kGroupElements * kGroupElements + row * kColumns);
  }
};

// `rows` x `columns` elements, rows `stride` apart; `columns` and `stride` are multiples of a chunk's elements.
template <typename T>
struct GlobalTile {
  T* data;
  int64_t stride;
  int rows, columns;
};

// Starts copying `from` into the first kRows rows of `to`; elements outside of `from` become 0. All kThreads threads of
// the block must call.
template <int kRows, int kThreads, typename T, typename Tile>
__device__ __forceinline__ void copy_tile(const Tile& to, const GlobalTile<const T>& from) {
  constexpr int kRowThreads = kThreads % Tile::kChunks == 0 ? Tile::kChunks : 4, kStepRows = kThreads / kRowThreads;
  static_assert(kRows % kStepRows == 0 && Tile::kChunks % kRowThreads == 0);
  // computed_here(): neither values that depend only on the thread nor an offset per step are worth a register.
  const int thread = computed_here(static_cast<int>(threadIdx.x)), row = thread / kRowThreads;
  const int first = thread % kRowThreads;
  const T* source = from.data + row * from.stride + first * Tile::kChunkElements;
#pragma unroll
  for (int step = 0; step < kRows; step += kStepRows) {
#pragma unroll
    for (int chunk = 0; chunk < Tile::kChunks; chunk += kRowThreads) {
      const bool inside = row + step < from.rows && (first + chunk) * Tile::kChunkElements < from.columns;
      copy_async(to.chunk(row + step, first + chunk), inside ? source + chunk * Tile::kChunkElements : from.data,
                 inside ? CopyExtent::kWhole : CopyExtent::kZeros);
    }
    source += kStepRows * from.stride;
  }
}

// The calling warp writes rows [row, row + kRows) of `from` to the same rows of `to`, as far as `to` has them.
template <int kRows, typename T, typename Tile>
__device__ __forceinline__ void write_rows(const GlobalTile<T>& to, const Tile& from, int row) {
  static_assert(kRows * Tile::kChunks % kLanes == 0);
#pragma unroll
  for (int i = 0; i < kRows * Tile::kChunks / kLanes; ++i) {
    const int index = i * kLanes + static_cast<int>(threadIdx.x) % kLanes;
    const int from_row = row + index / Tile::kChunks, chunk = index % Tile::kChunks;
    if (from_row >= to.rows || chunk * Tile::kChunkElements >= to.columns) continue;
    using Chunk = Vector<T, Tile::kChunkElements>;
    *reinterpret_cast<Chunk*>(to.data + from_row * to.stride + chunk * Tile::kChunkElements) =
        *reinterpret_cast<const Chunk*>(from.chunk(from_row, chunk));
  }
}

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
