// Common parts of the attention kernels on tensor cores: blocks of four warps, head dimensions padded with zeros to a
// multiple of 32, masks, and writes of results.
#pragma once

#include <limits>

#include "core/cuda/device/warp_multiply.h"
#include "core/kernels/attention/layout_cuda.h"

namespace mantissa::cuda {

constexpr int kAttentionWarps = 4, kAttentionThreads = kAttentionWarps * kLanes;
constexpr float kMaskedScore = -std::numeric_limits<float>::infinity();

// Calls body.operator()<T, kDim>() for a 16-bit dtype, with the smallest kDim that holds head_dim.
template <typename Body>
void dispatch_mma(DType dtype, int64_t head_dim, const Body& body) {
  const auto with_dtype = [&]<typename T>() {
    if (head_dim <= 32) return body.template operator()<T, 32>();
    if (head_dim <= 64) return body.template operator()<T, 64>();
    if (head_dim <= 96) return body.template operator()<T, 96>();
    body.template operator()<T, 128>();
  };
  dtype == DType::kBF16 ? with_dtype.template operator()<BFloat16>() : with_dtype.template operator()<Float16>();
}

// The positions of one head from `first` on, to the end of its sequence.
template <typename T>
__device__ __forceinline__ GlobalTile<T> head_rows(T* first_row, int64_t stride, const AttentionShape& shape,
                                                   int first) {
  return {.data = first_row,
          .stride = stride,
          .rows = static_cast<int>(shape.sequence_length) - first,
          .columns = static_cast<int>(shape.head_dim)};
}

// Scores, queries by keys, of keys that a query does not see become -Inf. `first_query` and `first_key` are the warp's.
template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void mask_scores(Sums<kRowTiles, kColumnTiles>& scores, int first_query, int first_key,
                                            const AttentionShape& shape) {
  // Once in a while: not worth registers in between.
  const int lane = computed_here(static_cast<int>(threadIdx.x)) % kLanes;
  const int length = static_cast<int>(shape.sequence_length);
  const int ahead = shape.mask == Mask::kCausal ? 1 : length;  // a query at t sees t + ahead keys, or all
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int end = std::min(length, first_query + m * 16 + half * 8 + lane / 4 + ahead) - first_key - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        if (n * 8 >= end) scores[m][n][half * 2] = kMaskedScore;
        if (n * 8 + 1 >= end) scores[m][n][half * 2 + 1] = kMaskedScore;
      }
    }
  }
}

template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void scale_sums(Sums<kRowTiles, kColumnTiles>& sums, float factor) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] *= factor;
    }
  }
}

// Writes a warp's sums, rounded, to the rows [row, row + kRowTiles * 16) of `to`. Goes through these rows of `staging`,
// which no other warp may be reading, so that the writes are whole 16-byte chunks.
template <int kRowTiles, int kColumnTiles, typename T, typename Tile>
__device__ __forceinline__ void write_sums(const GlobalTile<T>& to, const Tile& staging, int row,
                                           const Sums<kRowTiles, kColumnTiles>& sums) {
  store_sums(staging, row, sums);
  __syncwarp();
  write_rows<kRowTiles * 16>(to, staging, row);
}

}  // namespace mantissa::cuda
