// Gradient of queries on tensor cores, p = exp(scale * q k^T - lse):
//   d_q = scale * d_s k, with d_s = p * (d_p - delta), d_p = d_out v^T, delta = rowsum(out * d_out).
//
// A block has 128 queries of a head, 32 a warp (half of that for Reach::kLimited), and goes over the keys 64 at a time
// (32 above head dimension 64, where registers end). The gradient stays in fp32 registers until the end; d_s is rounded
// to the operands' dtype for the last product only. Keys come in order: every run gives the same bits.
// keys_backward_mma.cu.cc has the other half of the backward pass, and explains the division.
//
// Keys and values are copied in while those before them are multiplied. Bound by tensor cores: 6 T^2 D operations per
// head, half of them when causal.
//
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.
#include "core/kernels/attention/mma_cuda.h"

namespace mantissa::cuda {
namespace {

template <int kDim>
constexpr int kKeys = kDim <= 64 ? 64 : 32;  // of one step

template <typename Tile>
struct KeyBuffer {
  Tile keys, values;
};

// Queries from `first_query` on of one head, at most a block, and keys from `keys_begin` on. Both end at `end`.
template <typename T, int kDim, Reach kReach>
__device__ __forceinline__ void queries_backward(const AttentionBackwardOperands<T>& operands,
                                                 const AttentionShape& shape, const HeadPiece& at, int first_query,
                                                 int keys_begin, int end) {
  using Tile = SharedTile<T, kDim>;
  constexpr int kRowTiles = QueryRows<kReach>::kTiles, kWarpQueries = QueryRows<kReach>::kOfWarp;
  constexpr int kQueries = QueryRows<kReach>::kOfBlock, kStep = kKeys<kDim>;
  T* shared = shared_memory<T>();
  const Tile queries{shared}, d_out{shared + Tile::elements(kQueries)};
  const auto buffer = [&](int index) {
    T* tiles = shared + Tile::elements(2 * kQueries + index * 2 * kStep);
    return KeyBuffer<Tile>{Tile{tiles}, Tile{tiles + Tile::elements(kStep)}};
  };

  const bool causal = shape.mask == Mask::kCausal;
  const int warp_row = static_cast<int>(threadIdx.x) / kLanes * kWarpQueries;
  const int first_warp_query = first_query + warp_row, window = static_cast<int>(shape.window);
  const int keys_end = causal ? std::min(end, first_query + kQueries) : end;
  const int64_t kv_head = at.head / shape.group();
  const auto copy_step = [&](int first, const KeyBuffer<Tile>& to) {
    const T* keys = operands.qkv + shape.key_offset(at.b, kv_head, first);
    const T* values = operands.qkv + shape.value_offset(at.b, kv_head, first);
    copy_tile<kStep, kAttentionThreads>(to.keys, head_rows(keys, shape.qkv_row(), shape, end - first));
    copy_tile<kStep, kAttentionThreads>(to.values, head_rows(values, shape.qkv_row(), shape, end - first));
  };

  const T* query_rows = operands.qkv + shape.query_offset(at.b, at.head, first_query);
  const T* d_out_rows = operands.d_out + shape.out_offset(at.b, at.head, first_query);
  copy_tile<kQueries, kAttentionThreads>(queries, head_rows(query_rows, shape.qkv_row(), shape, end - first_query));
  copy_tile<kQueries, kAttentionThreads>(d_out, head_rows(d_out_rows, shape.out_row(), shape, end - first_query));
  copy_step(keys_begin, buffer(0));
  commit_copies();

  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float log2_sums[kRowTiles][2], deltas[kRowTiles][2];  // of the queries whose scores the lane holds
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int query = first_warp_query + m * 16 + half * 8 + lane / 4;
      if constexpr (kReach == Reach::kLimited) query = std::min(query, end - 1);  // the others' results are not written
      const int64_t term = operands.terms.offset(shape, at.b, at.head, query);
      log2_sums[m][half] = operands.terms.log2_sums[term];
      deltas[m][half] = operands.terms.deltas[term];
    }
  }

  Sums<kRowTiles, kDim / 8> d_queries = {};
  const float log2_scale = shape.scale * kLog2E;
  for (int first_key = keys_begin, parity = 0; first_key < keys_end; first_key += kStep, parity ^= 1) {
    const KeyBuffer<Tile> now = buffer(parity);
    wait_for_copies<0>();
    __syncthreads();  // this step's keys are there; nobody needs those of the step before any more
    if (first_key + kStep < keys_end) copy_step(first_key + kStep, buffer(parity ^ 1));
    commit_copies();
    if (causal && first_key >= first_warp_query + kWarpQueries) continue;  // no query of the warp sees these keys
    if (is_before_window<kReach>(first_warp_query, first_key, kStep, window)) continue;

    Sums<kRowTiles, kStep / 8> scores = {}, d_scores = {};
    multiply_transposed(scores, queries, warp_row, now.keys);
    multiply_transposed(d_scores, d_out, warp_row, now.values);
    if (first_key + kStep > end || (causal && first_key + kStep > first_warp_query + 1) ||
        is_before_window<kReach>(first_warp_query + kWarpQueries - 1, first_key, 1, window)) {
      mask_scores<kReach>(scores, first_warp_query, first_key, end, shape);
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kStep / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float p = exp2_flushed(fmaf(scores[m][n][i], log2_scale, -log2_sums[m][i / 2]));
          d_scores[m][n][i] = p * (d_scores[m][n][i] - deltas[m][i / 2]);
        }
      }
    }
    LeftOperand<kRowTiles> left[kStep / 16];
    round_to_left<T>(left, d_scores);
    multiply(d_queries, left, now.keys);
  }

  scale_sums(d_queries, shape.scale);
  T* to = operands.d_qkv + shape.query_offset(at.b, at.head, first_query);
  write_sums(head_rows(to, shape.qkv_row(), shape, end - first_query), queries, warp_row, d_queries);
}

template <typename T, int kDim, Reach kReach>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    queries_backward_kernel(AttentionBackwardOperands<T> operands, AttentionShape shape) {
  constexpr int kQueries = QueryRows<kReach>::kOfBlock;
  const int length = static_cast<int>(shape.sequence_length), pieces = pieces_of(length, kQueries);
  HeadPiece at = head_piece(pieces, shape.num_heads);
  if (shape.mask == Mask::kCausal) at.piece = pieces - 1 - at.piece;  // the longest first
  if constexpr (kReach == Reach::kWhole) {
    queries_backward<T, kDim, kReach>(operands, shape, at, at.piece * kQueries, 0, length);
  } else {
    for_each_document(operands.starts, at, kQueries, shape, [&](int first, int end, const Document& document) {
      const int keys_begin = static_cast<int>(shape.first_key(first, document.begin));
      queries_backward<T, kDim, kReach>(operands, shape, at, first, keys_begin, end);
      __syncthreads();  // nobody needs these tiles any more
    });
  }
}

}  // namespace

void attention_queries_backward_mma(const AttentionBackwardArgs& args, const AttentionRowTerms& terms,
                                    CudaStream& stream) {
  const AttentionShape& shape = args.shape;
  dispatch_mma(args, [&]<typename T, int kDim, Reach kReach>() {
    constexpr int kQueries = QueryRows<kReach>::kOfBlock;
    launch(queries_backward_kernel<T, kDim, kReach>,
           {.grid = head_pieces_grid("attention_backward", shape, shape.num_heads, kQueries),
            .block = kAttentionThreads,
            .shared_bytes = SharedTile<T, kDim>::elements(2 * kQueries + 4 * kKeys<kDim>) * sizeof(T)},
           stream.handle(), backward_operands<T>(args, terms), shape);
  });
}

}  // namespace mantissa::cuda
