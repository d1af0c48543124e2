// What the attention kernels without tensor cores have in common: blocks of 256 threads that multiply 64 x 64 fp32
// tiles in shared memory, each thread with 4 x 4 results, in fp32 and in ascending order.
#pragma once

#include "core/kernels/attention/layout_cuda.h"

namespace mantissa::cuda {

constexpr int kSimtTile = 64, kSimtSide = 16, kSimtThreads = kSimtSide * kSimtSide;
constexpr int kSimtPerThread = kSimtTile / kSimtSide;  // rows, and columns

// Blocks that share the columns of a head: the y extent of a grid.
inline unsigned simt_column_blocks(const AttentionShape& extents) {
  constexpr int64_t kMaxColumnBlocks = 65535;
  const int64_t blocks = pieces_of(extents.head_dim, kSimtTile);
  MANTISSA_CHECK(blocks <= kMaxColumnBlocks, "[attention] head_dim must be at most {}, got {}",
                 kMaxColumnBlocks * kSimtTile, extents.head_dim);
  return static_cast<unsigned>(blocks);
}

// A thread's results: rows first_row() + i, columns column(j).
using SimtSums = float[kSimtPerThread][kSimtPerThread];

__device__ __forceinline__ int simt_first_row() { return static_cast<int>(threadIdx.x) / kSimtSide * kSimtPerThread; }
// Neighbouring lanes have neighbouring columns: no bank conflicts, whole lines of memory.
__device__ __forceinline__ int simt_column(int j) { return static_cast<int>(threadIdx.x) % kSimtSide + j * kSimtSide; }

struct SimtTile {
  static constexpr int kStride = kSimtTile + 1;  // rows that neighbouring lanes read begin in different banks
  static constexpr int kElements = kSimtTile * kStride;

  __device__ __forceinline__ float& at(int row, int column) const { return data[row * kStride + column]; }

  float* data;
};

// Rows of one head in global memory, from some position on to the end of the sequence.
template <typename T>
struct SimtRows {
  T* data;
  int64_t stride;
  int rows, columns;
};

template <typename T>
__device__ __forceinline__ SimtRows<T> simt_rows(T* first_row, int64_t stride, const AttentionShape& extents,
                                                 int first) {
  return {.data = first_row,
          .stride = stride,
          .rows = static_cast<int>(extents.sequence_length) - first,
          .columns = static_cast<int>(extents.head_dim)};
}

// Columns [first_column, first_column + 64) of the first 64 rows; 0 where there are none.
template <typename T>
__device__ __forceinline__ void load_tile(const SimtTile& to, const SimtRows<const T>& from, int first_column) {
  for (int i = static_cast<int>(threadIdx.x); i < kSimtTile * kSimtTile; i += kSimtThreads) {
    const int row = i / kSimtTile, column = i % kSimtTile;
    const bool inside = row < from.rows && first_column + column < from.columns;
    to.at(row, column) = inside ? widen(from.data[row * from.stride + first_column + column]) : 0.0f;
  }
}

// Into columns [first_column, first_column + 64), rounded.
template <typename T>
__device__ __forceinline__ void write_sums(const SimtRows<T>& to, int first_column, const SimtSums& sums) {
  for (int i = 0; i < kSimtPerThread; ++i) {
    for (int j = 0; j < kSimtPerThread; ++j) {
      const int row = simt_first_row() + i, column = first_column + simt_column(j);
      if (row < to.rows && column < to.columns) to.data[row * to.stride + column] = narrow<T>(sums[i][j]);
    }
  }
}

__device__ __forceinline__ void store_tile(const SimtTile& to, const SimtSums& values) {
  for (int i = 0; i < kSimtPerThread; ++i) {
    for (int j = 0; j < kSimtPerThread; ++j) to.at(simt_first_row() + i, simt_column(j)) = values[i][j];
  }
}

// sums += over k of left(row, k) * right(k, column), as the two functions give them.
template <typename Left, typename Right>
__device__ __forceinline__ void add_product(SimtSums& sums, const Left& left, const Right& right) {
  for (int k = 0; k < kSimtTile; ++k) {
    float rows[kSimtPerThread], columns[kSimtPerThread];
#pragma unroll
    for (int i = 0; i < kSimtPerThread; ++i) {
      rows[i] = left(simt_first_row() + i, k);
      columns[i] = right(k, simt_column(i));
    }
#pragma unroll
    for (int i = 0; i < kSimtPerThread; ++i) {
#pragma unroll
      for (int j = 0; j < kSimtPerThread; ++j) sums[i][j] += rows[i] * columns[j];
    }
  }
}

// sums += left * right^T over all columns, through the tiles `a` and `b`. Begins and ends with a barrier, so that both
// can be written to before and after.
template <typename T>
__device__ __forceinline__ void add_dot_products(SimtSums& sums, const SimtRows<const T>& left,
                                                 const SimtRows<const T>& right, const SimtTile& a, const SimtTile& b) {
  for (int column = 0; column < left.columns; column += kSimtTile) {
    __syncthreads();
    load_tile(a, left, column);
    load_tile(b, right, column);
    __syncthreads();
    add_product(
        sums, [&](int row, int k) { return a.at(row, k); }, [&](int k, int other) { return b.at(other, k); });
  }
  __syncthreads();
}

}  // namespace mantissa::cuda
