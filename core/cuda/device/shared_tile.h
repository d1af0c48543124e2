// A tile of a 16-bit matrix in shared memory: copies it from global memory, and addresses it for tensor cores.
//
// A row is divided into chunks of 16 bytes, the unit of copies and of load_matrices. The row's number permutes its
// chunks, so that the same chunk of eight neighbouring rows lies in eight different groups of banks. So accesses have
// no bank conflicts and need no padding.
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

  // Equals chunk(lane_row + row, lane_chunk + column / kChunkElements), with one part that depends only on the lane.
  // The whole address would be loop-invariant, too, but there are dozens of them, and the compiler would keep all in
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

}  // namespace mantissa::cuda
