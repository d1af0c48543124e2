// Common parts of the attention kernels on tensor cores: blocks of four warps, head dimensions padded with zeros to a
// multiple of 32, masks, and writes of results.
//
// Each kernel exists twice: for whole sequences, and for documents and windows (Reach). In the latter a block works on
// its queries, or keys, document by document, as if each were a sequence of its own: rows of other documents are not
// read, and steps that the window hides are skipped. So only tiles with visible pairs are multiplied; a document costs
// a tile at least.
#pragma once

#include <limits>

#include "core/cuda/device/warp_multiply.h"
#include "core/kernels/attention/layout_cuda.h"

namespace mantissa::cuda {

constexpr int kAttentionWarps = 4, kAttentionThreads = kAttentionWarps * kLanes;
constexpr float kMaskedScore = -std::numeric_limits<float>::infinity();

// The keys that queries see: all of the sequence as far as the mask allows, or less by documents or a window.
enum class Reach : uint8_t { kWhole, kLimited };

// The queries of a block. Limits take registers, which blocks of half the size leave; these also fit borders better.
template <Reach kReach>
struct QueryRows {
  static constexpr int kTiles = kReach == Reach::kWhole ? 2 : 1;  // of 16, for each warp
  static constexpr int kOfWarp = kTiles * 16, kOfBlock = kAttentionWarps * kOfWarp;
  static_assert(kRowTermsBlock % kOfBlock == 0);
};

// Calls body.operator()<T, kDim, kReach>() for 16-bit operands, with the smallest kDim that holds head_dim.
template <typename Args, typename Body>
void dispatch_mma(const Args& args, const Body& body) {
  const auto with_dim = [&]<typename T, int kDim>() {
    if (args.starts.defined() || args.shape.window > 0) return body.template operator()<T, kDim, Reach::kLimited>();
    body.template operator()<T, kDim, Reach::kWhole>();
  };
  const auto with_dtype = [&]<typename T>() {
    if (args.shape.head_dim <= 32) return with_dim.template operator()<T, 32>();
    if (args.shape.head_dim <= 64) return with_dim.template operator()<T, 64>();
    if (args.shape.head_dim <= 96) return with_dim.template operator()<T, 96>();
    with_dim.template operator()<T, 128>();
  };
  args.qkv.dtype() == DType::kBF16 ? with_dtype.template operator()<BFloat16>()
                                   : with_dtype.template operator()<Float16>();
}

// Calls body(at, first, keys_begin, end) for the block's queries: [first, end) see keys from keys_begin on.
template <Reach kReach, typename Body>
__device__ __forceinline__ void for_each_query_block(const int32_t* starts, const AttentionShape& shape,
                                                     const Body& body) {
  constexpr int kQueries = QueryRows<kReach>::kOfBlock;
  const int length = static_cast<int>(shape.sequence_length), pieces = pieces_of(length, kQueries);
  HeadPiece at = head_piece(pieces, shape.num_heads);
  if (shape.mask == Mask::kCausal) at.piece = pieces - 1 - at.piece;  // the longest first
  if constexpr (kReach == Reach::kWhole) {
    body(at, at.piece * kQueries, 0, length);
  } else {
    for_each_document(starts, at, kQueries, shape, [&](int first, int end, const Document& document) {
      body(at, first, static_cast<int>(shape.first_key(first, document.begin)), end);
      __syncthreads();  // nobody needs these tiles any more
    });
  }
}

// `rows` positions of one head.
template <typename T>
__device__ __forceinline__ GlobalTile<T> head_rows(T* first_row, int64_t stride, const AttentionShape& shape,
                                                   int rows) {
  return {.data = first_row, .stride = stride, .rows = rows, .columns = static_cast<int>(shape.head_dim)};
}

// Whether the window hides the last of `keys` keys from the first of the queries, all from `first_...` on.
template <Reach kReach>
__device__ __forceinline__ bool is_before_window(int first_query, int first_key, int keys, int window) {
  return kReach == Reach::kLimited && window > 0 && first_key + keys <= first_query - window + 1;
}

// Scores, queries by keys, of keys that a query does not see become -Inf. `first_query` and `first_key` are the warp's,
// keys end at `keys_end`.
template <Reach kReach, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void mask_scores(Sums<kRowTiles, kColumnTiles>& scores, int first_query, int first_key,
                                            int keys_end, const AttentionShape& shape) {
  const bool causal = shape.mask == Mask::kCausal;
  const int window = static_cast<int>(shape.window), step_end = first_key + kColumnTiles * 8;
  if (step_end <= keys_end && (!causal || step_end <= first_query + 1) &&
      !is_before_window<kReach>(first_query + kRowTiles * 16 - 1, first_key, 1, window)) {
    return;  // nothing is hidden
  }
  // Once in a while: not worth registers in between.
  const int lane = computed_here(static_cast<int>(threadIdx.x)) % kLanes;
  // A query at t sees t + ahead keys, or all.
  const int ahead = causal ? 1 : static_cast<int>(shape.sequence_length);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + m * 16 + half * 8 + lane / 4;
      const int end = std::min(keys_end, query + ahead) - first_key - lane % 4 * 2;
      const int begin = window > 0 ? query - window + 1 - first_key - lane % 4 * 2 : 0;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const auto hidden = [&](int column) { return column >= end || (kReach == Reach::kLimited && column < begin); };
        if (hidden(n * 8)) scores[m][n][half * 2] = kMaskedScore;
        if (hidden(n * 8 + 1)) scores[m][n][half * 2 + 1] = kMaskedScore;
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

// Writes a warp's sums, rounded, to the rows [row, row + kRowTiles * 16) of `to`, in whole 16-byte chunks. Goes through
// these rows of `staging`, which no other warp may be reading.
template <int kRowTiles, int kColumnTiles, typename T, typename Tile>
__device__ __forceinline__ void write_sums(const GlobalTile<T>& to, const Tile& staging, int row,
                                           const Sums<kRowTiles, kColumnTiles>& sums) {
  store_sums(staging, row, sums);
  __syncwarp();
  write_rows<kRowTiles * 16>(to, staging, row);
}

}  // namespace mantissa::cuda
