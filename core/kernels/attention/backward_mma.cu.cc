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
                                                    int first_query, const AttentionShape& shape) {
  const int window = static_cast<int>(shape.window);
  if ((shape.mask != Mask::kCausal || first_key + kRowTiles * 16 <= first_query + 1) &&
      !is_before_window<kReach>(first_query + kColumnTiles * 8 - 1, first_key, 1, window)) {
    return;  // nothing is hidden
  }
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

// Calls body(m, n, i, term) for the scores that a lane holds, keys by queries, with the term of the score's query.
template <int kRowTiles, int kColumnTiles, typename Body>
__device__ __forceinline__ void for_each_score_by_keys(const float* terms, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float term = terms[n * 8 + lane % 4 * 2 + i % 2];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) body(m, n, i, term);
    }
  }
}

template <typename T, int kDim>
__device__ __forceinline__ QueryBuffer<SharedTile<T, kDim>> query_buffer(int index) {
  using S = Shape<kDim>;
  using Tile = SharedTile<T, kDim>;
  T* shared = shared_memory<T>();
  T* tiles = shared + Tile::elements(2 * S::kKeys + index * 2 * S::kQueries);
  auto* floats = reinterpret_cast<float*>(shared + Tile::elements(2 * S::kKeys + 4 * S::kQueries));
  floats += index * 2 * S::kQueries;
  return {Tile{tiles}, Tile{tiles + Tile::elements(S::kQueries)}, floats, floats + S::kQueries};
}

// Starts copying the queries of a step, up to `end`, with their terms.
template <Reach kReach, int kQueries, typename T, typename Tile>
__device__ __forceinline__ void copy_queries(const QueryBuffer<Tile>& to, const AttentionBackwardOperands<T>& operands,
                                             const AttentionShape& shape, int b, const Step& step, int end) {
  const T* queries = operands.qkv + shape.query_offset(b, step.head, step.query);
  const T* d_out = operands.d_out + shape.out_offset(b, step.head, step.query);
  const int rows = end - step.query;
  copy_tile<kQueries, kAttentionThreads>(to.queries, head_rows(queries, shape.qkv_row(), shape, rows));
  copy_tile<kQueries, kAttentionThreads>(to.d_out, head_rows(d_out, shape.out_row(), shape, rows));
  const int64_t terms = operands.terms.offset(shape, b, step.head, step.query);
  if constexpr (kReach == Reach::kLimited) {  // queries of the next document see nothing here, like the padding
    copy_floats_singly(to.log2_sums, operands.terms.log2_sums + terms, kQueries, rows, -kMaskedScore);
    copy_floats_singly(to.deltas, operands.terms.deltas + terms, kQueries, rows, 0.0f);
  } else {
    const int thread = static_cast<int>(threadIdx.x);
    copy_floats(to.log2_sums, operands.terms.log2_sums + terms, kQueries, thread);
    copy_floats(to.deltas, operands.terms.deltas + terms, kQueries, thread - kAttentionThreads / 2);
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
  const auto rows = [&](auto* first) { return head_rows(first, shape.qkv_row(), shape, end - first_key); };
  const bool causal = shape.mask == Mask::kCausal;
  const int first_query = causal ? first_key : 0, window = static_cast<int>(shape.window);
  const int warp_row = static_cast<int>(threadIdx.x) / kLanes * S::kWarpKeys, first_warp_key = first_key + warp_row;
  const int64_t head_end = (at.head + 1) * shape.group();

  const auto copy_step = [&](const Step& step, int buffer) {
    copy_queries<kReach, S::kQueries>(query_buffer<T, kDim>(buffer), operands, shape, at.b, step, queries_end);
  };
  Step step{.head = at.head * shape.group(), .query = first_query};
  copy_tile<S::kKeys, kAttentionThreads>(keys, rows(operands.qkv + shape.key_offset(at.b, at.head, first_key)));
  copy_tile<S::kKeys, kAttentionThreads>(values, rows(operands.qkv + shape.value_offset(at.b, at.head, first_key)));
  copy_step(step, 0);
  commit_copies();

  Sums<S::kRowTiles, kDim / 8> d_keys = {}, d_values = {};
  const float log2_scale = shape.scale * kLog2E;
  for (int parity = 0; step.head < head_end; parity ^= 1) {
    const QueryBuffer<Tile> now = query_buffer<T, kDim>(parity);
    const int query = step.query;
    wait_for_copies<0>();
    __syncthreads();  // this step's queries are there; nobody needs those of the step before any more
    step.query += S::kQueries;
    if (step.query >= queries_end) step = {.head = step.head + 1, .query = first_query};
    if (step.head < head_end) copy_step(step, parity ^ 1);
    commit_copies();
    if (causal && first_warp_key >= query + S::kQueries) continue;  // no query of this step sees a key of the warp
    if (is_before_window<kReach>(query, first_warp_key, S::kWarpKeys, window)) continue;

    Sums<S::kRowTiles, S::kQueries / 8> probabilities = {};
    multiply_transposed(probabilities, keys, warp_row, now.queries);
    mask_scores_by_keys<kReach>(probabilities, first_warp_key, query, shape);
    for_each_score_by_keys<S::kRowTiles, S::kQueries / 8>(now.log2_sums, [&](int m, int n, int i, float log2_sum) {
      probabilities[m][n][i] = exp2_flushed(fmaf(probabilities[m][n][i], log2_scale, -log2_sum));
    });
    LeftOperand<S::kRowTiles> left[S::kQueries / 16];
    round_to_left<T>(left, probabilities);
    multiply(d_values, left, now.d_out);

    Sums<S::kRowTiles, S::kQueries / 8> d_scores = {};
    multiply_transposed(d_scores, values, warp_row, now.d_out);
    for_each_score_by_keys<S::kRowTiles, S::kQueries / 8>(now.deltas, [&](int m, int n, int i, float delta) {
      d_scores[m][n][i] = probabilities[m][n][i] * (d_scores[m][n][i] - delta);
    });
    round_to_left<T>(left, d_scores);
    multiply(d_keys, left, now.queries);
  }

  scale_sums(d_keys, shape.scale);
  write_sums(rows(operands.d_qkv + shape.key_offset(at.b, at.head, first_key)), keys, warp_row, d_keys);
  write_sums(rows(operands.d_qkv + shape.value_offset(at.b, at.head, first_key)), values, warp_row, d_values);
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

// Terms of the queries whose scores a lane holds: two in each row tile.
template <int kRowTiles>
struct LaneTerms {
  float log2_sums[kRowTiles][2], deltas[kRowTiles][2];
};

// Those of queries from `first_query` up to `end`.
template <Reach kReach, int kRowTiles>
__device__ __forceinline__ void load_terms(LaneTerms<kRowTiles>& to, const AttentionRowTerms& terms,
                                           const AttentionShape& shape, const HeadPiece& at, int first_query, int end) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int query = first_query + m * 16 + half * 8 + lane / 4;
      if constexpr (kReach == Reach::kLimited) query = std::min(query, end - 1);  // the others' results are not written
      const int64_t term = terms.offset(shape, at.b, at.head, query);
      to.log2_sums[m][half] = terms.log2_sums[term];
      to.deltas[m][half] = terms.deltas[term];
    }
  }
}

// d_p, queries by keys, become d_s.
template <int kRowTiles, int kColumnTiles>
__device__ __forceinline__ void softmax_gradient(Sums<kRowTiles, kColumnTiles>& d_scores,
                                                 const Sums<kRowTiles, kColumnTiles>& scores, float log2_scale,
                                                 const LaneTerms<kRowTiles>& terms) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float p = exp2_flushed(fmaf(scores[m][n][i], log2_scale, -terms.log2_sums[m][i / 2]));
        d_scores[m][n][i] = p * (d_scores[m][n][i] - terms.deltas[m][i / 2]);
      }
    }
  }
}

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

  LaneTerms<kRowTiles> terms;
  load_terms<kReach>(terms, operands.terms, shape, at, first_warp_query, end);
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
    mask_scores<kReach>(scores, first_warp_query, first_key, end, shape);
    softmax_gradient(d_scores, scores, log2_scale, terms);
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
