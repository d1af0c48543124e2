// A tile of a 16-bit matrix in shared memory: how it comes in from global memory, and how tensor cores take it up.
//
// A row is cut into chunks of 16 bytes, which is what copies and load_matrices move. Chunks are permuted within a row,
// by the row's number, such that the same chunk of eight neighbouring rows lies in eight different groups of banks: no
// access has bank conflicts, and nothing is lost to padding.
#pragma once

#include "core/cuda/device/device.h"
#include "core/cuda/device/mma.h"

namespace mantissa::cuda {

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

  // The element of the calling lane's chunk for load_matrices from (row, column) on, which are multiples of 8 and 16:
  // the four 8 x 8 matrices of 16 x 16 elements by columns (top left, bottom left, top right, bottom right) or by rows.
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
  // Chunks that are permuted among each other. Rows of a multiple of eight chunks all begin in the same banks, others
  // by turns in one half of the banks or the other.
  static constexpr int kGroup = kChunks % 8 == 0 ? 8 : 4;

  __device__ static constexpr int permutation(int row) { return kGroup == 8 ? row & 7 : row >> 1 & 3; }

  // chunk(lane_row + row, lane_chunk + column / kChunkElements), with a part that depends on the lane only. The whole
  // would not change from one use to the next in a loop either, but there are dozens of them, and the compiler would
  // keep all in registers.
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

// Starts copying into the first kRows rows of `to`, by all kThreads threads of the block; what `from` lacks becomes 0.
template <int kRows, int kThreads, typename T, typename Tile>
__device__ __forceinline__ void copy_tile(const Tile& to, const GlobalTile<const T>& from) {
  constexpr int kRowThreads = kThreads % Tile::kChunks == 0 ? Tile::kChunks : 4, kStepRows = kThreads / kRowThreads;
  static_assert(kRows % kStepRows == 0 && Tile::kChunks % kRowThreads == 0);
  // Neither what depends on the thread only nor an offset for each step is worth a register in between.
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

// Writes rows [row, row + kRows) of `from` to the same rows of `to` where it has them, by the calling warp.
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

}  // namespace mantissa::cuda
