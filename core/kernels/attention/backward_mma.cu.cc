// The backward pass on tensor cores, p = exp(scale * q k^T - lse):
//   d_v = p^T d_out, d_k = scale * d_s^T q, d_q = scale * d_s k,
//   with d_s = p * (d_p - delta), d_p = d_out v^T, delta = rowsum(out * d_out).
//
// Gradients stay in fp32 registers until the end; p and d_s are rounded to the operands' dtype for the products with
// them only. Queries, keys and heads come in order and nothing is added across blocks: every run gives the same bits.
//
// Probabilities are computed once for the gradients of keys and values, and once more for those of queries: 7 products
// of 2 T^2 D operations per head. A single kernel has 5, but would have to add the gradient of queries across blocks,
// atomically or in turns. Operands are copied in while those before them are multiplied. Bound by tensor cores and, at
// one row tile a warp, by the reads of shared memory.
//
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.
#include "core/kernels/attention/mma_cuda.h"

namespace mantissa::cuda {
namespace {

// ---- Keys and values: a block has 128 keys of a key head (64 above head dimension 64, where registers end), and goes
// over all query heads of the group, and over their queries 32 (64) at a time. It computes the transposed scores k q^T
// and v d_out^T, keys by queries, so that they are left operands of the next products as they lie in registers.

template <int kDim>
struct Shape {
  static constexpr int kRowTiles = kDim <= 64 ? 2 : 1, kWarpKeys = kRowTiles * 16, kKeys = kAttentionWarps * kWarpKeys;
  static constexpr int kQueries = kDim <= 64 ? 32 : 64;  // of one step
  static_assert(kRowTermsBlock % kQueries == 0);
};

// The queries of a step.
template <typename Tile>
struct QueryBuffer {
  Tile queries, d_out;
  float *log2_sums, *deltas;
};

// The steps of a block: query heads of the group one after the other, their queries from `first_query` on.
struct Step {
  int64_t head;
  int query;
};

template <typename T, int kDim>
constexpr size_t shared_bytes() {
  using S = Shape<kDim>;
  return SharedTile<T, kDim>::elements(2 * S::kKeys + 4 * S::kQueries) * sizeof(T) + 4 * S::kQueries * sizeof(float);
}

// Copies `count` floats, a multiple of four.
__device__ __forceinline__ void copy_floats(float* to, const float* from, int count, int thread) {
  constexpr int kFloats = kAccessBytes / static_cast<int>(sizeof(float));
  if (0 <= thread && thread < count / kFloats) {
    copy_async(to + thread * kFloats, from + thread * kFloats, CopyExtent::kWhole);
  }
}

// The same by single elements, for any alignment; the last `count - given` become `filler`.
__device__ __forceinline__ void copy_floats_singly(float* to, const float* from, int count, int given, float filler) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < count) to[thread] = thread < given ? from[thread] : filler;
}

// Scores, keys by queries, of queries that do not see a key become -Inf.
template <Reach kReach, int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void mask_scores_by_keys(Sums<kRowTiles, kColumnTiles>& scores, int first_key,
                                                    int first_query, int window) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + m * 16 + i / 2 * 8 + lane / 4;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const int query = first_query + n * 8 + lane % 4 * 2 + i % 2;
        if (query < key || is_before_window<kReach>(query, key, 1, window)) scores[m][n][i] = kMaskedScore;
      }
    }
  }
}

// Keys from `first_key` up to `end` of one key head, at most kKeys, and the queries up to `queries_end`.
template <typename T, int kDim, Reach kReach>
__device__ __forceinline__ void keys_backward(const AttentionBackwardOperands<T>& operands, const AttentionShape& shape,
                                              const HeadPiece& at, int first_key, int end, int queries_end) {
  using S = Shape<kDim>;
  using Tile = SharedTile<T, kDim>;
  T* shared = shared_memory<T>();
  const Tile keys{shared}, values{shared + Tile::elements(S::kKeys)};
  const auto buffer = [&](int index) {
    T* tiles = shared + Tile::elements(2 * S::kKeys + index * 2 * S::kQueries);
    auto* floats = reinterpret_cast<float*>(shared + Tile::elements(2 * S::kKeys + 4 * S::kQueries));
    floats += index * 2 * S::kQueries;
    return QueryBuffer<Tile>{Tile{tiles}, Tile{tiles + Tile::elements(S::kQueries)}, floats, floats + S::kQueries};
  };

  const bool causal = shape.mask == Mask::kCausal;
  const int first_query = causal ? first_key : 0, window = static_cast<int>(shape.window);
  const int warp_row = static_cast<int>(threadIdx.x) / kLanes * S::kWarpKeys, first_warp_key = first_key + warp_row;
  const int64_t head_end = (at.head + 1) * shape.group();

  const auto copy_step = [&](const Step& step, const QueryBuffer<Tile>& to) {
    const T* queries = operands.qkv + shape.query_offset(at.b, step.head, step.query);
    const T* d_out = operands.d_out + shape.out_offset(at.b, step.head, step.query);
    const int rows = queries_end - step.query;
    copy_tile<S::kQueries, kAttentionThreads>(to.queries, head_rows(queries, shape.qkv_row(), shape, rows));
    copy_tile<S::kQueries, kAttentionThreads>(to.d_out, head_rows(d_out, shape.out_row(), shape, rows));
    const int64_t terms = operands.terms.offset(shape, at.b, step.head, step.query);
    if constexpr (kReach == Reach::kLimited) {  // queries of the next document see nothing here, like the padding
      copy_floats_singly(to.log2_sums, operands.terms.log2_sums + terms, S::kQueries, rows, -kMaskedScore);
      copy_floats_singly(to.deltas, operands.terms.deltas + terms, S::kQueries, rows, 0.0f);
    } else {
      const int thread = static_cast<int>(threadIdx.x);
      copy_floats(to.log2_sums, operands.terms.log2_sums + terms, S::kQueries, thread);
      copy_floats(to.deltas, operands.terms.deltas + terms, S::kQueries, thread - kAttentionThreads / 2);
    }
  };

  Step step{.head = at.head * shape.group(), .query = first_query};
  const T* key_rows = operands.qkv + shape.key_offset(at.b, at.head, first_key);
  const T* value_rows = operands.qkv + shape.value_offset(at.b, at.head, first_key);
  copy_tile<S::kKeys, kAttentionThreads>(keys, head_rows(key_rows, shape.qkv_row(), shape, end - first_key));
  copy_tile<S::kKeys, kAttentionThreads>(values, head_rows(value_rows, shape.qkv_row(), shape, end - first_key));
  copy_step(step, buffer(0));
  commit_copies();

  Sums<S::kRowTiles, kDim / 8> d_keys = {}, d_values = {};
  const float log2_scale = shape.scale * kLog2E;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int parity = 0; step.head < head_end; parity ^= 1) {
    const QueryBuffer<Tile> now = buffer(parity);
    const int query = step.query;
    wait_for_copies<0>();
    __syncthreads();  // this step's queries are there; nobody needs those of the step before any more
    step.query += S::kQueries;
    if (step.query >= queries_end) step = {.head = step.head + 1, .query = first_query};
    if (step.head < head_end) copy_step(step, buffer(parity ^ 1));
    commit_copies();
    if (causal && first_warp_key >= query + S::kQueries) continue;  // no query of this step sees a key of the warp
    if (is_before_window<kReach>(query, first_warp_key, S::kWarpKeys, window)) continue;

    Sums<S::kRowTiles, S::kQueries / 8> probabilities = {};
    multiply_transposed(probabilities, keys, warp_row, now.queries);
    if ((causal && first_warp_key + S::kWarpKeys > query + 1) ||
        is_before_window<kReach>(query + S::kQueries - 1, first_warp_key, 1, window)) {
      mask_scores_by_keys<kReach>(probabilities, first_warp_key, query, window);
    }
#pragma unroll
    for (int n = 0; n < S::kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float log2_sum = now.log2_sums[n * 8 + lane % 4 * 2 + i % 2];
#pragma unroll
        for (int m = 0; m < S::kRowTiles; ++m) {
          probabilities[m][n][i] = exp2_flushed(fmaf(probabilities[m][n][i], log2_scale, -log2_sum));
        }
      }
    }
    LeftOperand<S::kRowTiles> left[S::kQueries / 16];
    round_to_left<T>(left, probabilities);
    multiply(d_values, left, now.d_out);

    Sums<S::kRowTiles, S::kQueries / 8> d_scores = {};
    multiply_transposed(d_scores, values, warp_row, now.d_out);
#pragma unroll
    for (int n = 0; n < S::kQueries / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float delta = now.deltas[n * 8 + lane % 4 * 2 + i % 2];
#pragma unroll
        for (int m = 0; m < S::kRowTiles; ++m) d_scores[m][n][i] = probabilities[m][n][i] * (d_scores[m][n][i] - delta);
      }
    }
    round_to_left<T>(left, d_scores);
    multiply(d_keys, left, now.queries);
  }

  scale_sums(d_keys, shape.scale);
  T* d_key_rows = operands.d_qkv + shape.key_offset(at.b, at.head, first_key);
  T* d_value_rows = operands.d_qkv + shape.value_offset(at.b, at.head, first_key);
  write_sums(head_rows(d_key_rows, shape.qkv_row(), shape, end - first_key), keys, warp_row, d_keys);
  write_sums(head_rows(d_value_rows, shape.qkv_row(), shape, end - first_key), values, warp_row, d_values);
}

template <typename T, int kDim, Reach kReach>
__global__ void __launch_bounds__(kAttentionThreads, 2)
    keys_backward_kernel(AttentionBackwardOperands<T> operands, AttentionShape shape) {
  constexpr int kKeys = Shape<kDim>::kKeys;
  const int length = static_cast<int>(shape.sequence_length);
  const HeadPiece at = head_piece(pieces_of(length, kKeys), shape.num_kv_heads);  // causal: the longest come first
  if constexpr (kReach == Reach::kWhole) {
    keys_backward<T, kDim, kReach>(operands, shape, at, at.piece * kKeys, length, length);
  } else {
    for_each_document(operands.starts, at, kKeys, shape, [&](int first, int end, const Document& document) {
      const int window = static_cast<int>(shape.window);
      const int queries_end = window > 0 ? std::min(document.end, end - 1 + window) : document.end;
      keys_backward<T, kDim, kReach>(operands, shape, at, first, end, queries_end);
      __syncthreads();  // nobody needs these tiles any more
    });
  }
}

// ---- Queries: a block has 128 queries of a head, 32 a warp (half of that for Reach::kLimited), and goes over the keys
// 64 at a time (32 above head dimension 64, where registers end).

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
  for_each_query_block<kReach>(operands.starts, shape, [&](const HeadPiece& at, int first, int keys_begin, int end) {
    queries_backward<T, kDim, kReach>(operands, shape, at, first, keys_begin, end);
  });
}

}  // namespace

void attention_backward_mma(const AttentionBackwardArgs& args, const AttentionRowTerms& terms, CudaStream& stream) {
  constexpr const char* kOp = "attention_backward";
  const AttentionShape& shape = args.shape;
  dispatch_mma(args, [&]<typename T, int kDim, Reach kReach>() {
    constexpr int kQueries = QueryRows<kReach>::kOfBlock;
    const auto operands = backward_operands<T>(args, terms);
    launch(keys_backward_kernel<T, kDim, kReach>,
           {.grid = head_pieces_grid(kOp, shape, shape.num_kv_heads, Shape<kDim>::kKeys),
            .block = kAttentionThreads,
            .shared_bytes = shared_bytes<T, kDim>()},
           stream.handle(), operands, shape);
    launch(queries_backward_kernel<T, kDim, kReach>,
           {.grid = head_pieces_grid(kOp, shape, shape.num_heads, kQueries),
            .block = kAttentionThreads,
            .shared_bytes = SharedTile<T, kDim>::elements(2 * kQueries + 4 * kKeys<kDim>) * sizeof(T)},
           stream.handle(), operands, shape);
  });
}

}  // namespace mantissa::cuda
