// Gradient of out = p v, p = exp(s - lse), s = scale * q k^T, per sequence and key head:
//   delta = rowsum(out * d_out), d_p = d_out v^T, d_s = p * (d_p - delta),
//   d_v = p^T d_out, d_k = scale * d_s^T q, d_q = scale * d_s k.
//
// Probabilities are recomputed from lse, block by block. All sums are kept in fp32 scratch, in a fixed order (d_q: key
// blocks; d_k and d_v: the segments of segments_cpu.h, then query blocks), and rounded once: nothing depends on
// the number of threads. Non-finite values spread as in the forward pass.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022, appendix B.
#include "core/kernels/attention/documents_cpu.h"
#include "core/kernels/attention/pairs_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention/backward_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernels/attention/blocks-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// One thread's fp32 working memory, for the queries (rows) of a query head and the sums of keys.
struct AttentionBackwardScratch {
  ScratchLayout layout;
  int64_t rows, summed_keys, padded;
  float* queries = layout.take<float>(rows * padded);                            // (rows, padded); scaled
  float* d_out = layout.take<float>(rows * padded);                              // (rows, padded)
  float* d_queries = layout.take<float>(rows * padded);                          // (rows, padded)
  KeySums total = take_sums(layout, summed_keys, padded);                        // (summed_keys, padded)
  KeySums part = take_sums(layout, kAttentionBlock, padded);                     // (64, padded)
  float* keys = layout.take<float>(kAttentionBlock * padded);                    // (64, padded)
  float* values = layout.take<float>(kAttentionBlock * padded);                  // (64, padded)
  float* keys_transposed = layout.take<float>(kAttentionBlock * padded);         // (padded, 64)
  float* values_transposed = layout.take<float>(kAttentionBlock * padded);       // (padded, 64)
  float* probabilities = layout.take<float>(kAttentionBlock * kAttentionBlock);  // (64, 64)
  float* d_scores = layout.take<float>(kAttentionBlock * kAttentionBlock);       // (64, 64)
  float* delta = layout.take<float>(rows);                                       // (rows)
  size_t bytes = layout.used_bytes();
};

// Turns the scores and d_p of a block into p and d_s in place; 0 outside of the visible keys.
HWY_INLINE void softmax_backward_block(const AttentionBackwardScratch& s, const float* lse, const float* delta,
                                       int64_t rows, const BlockView& view) {
  const FloatTag df;
  for (int64_t r = 0; r < rows; ++r) {
    float* p_row = s.probabilities + r * kAttentionBlock;
    float* d_row = s.d_scores + r * kAttentionBlock;
    const auto lse_vector = hn::Set(df, lse[r]), delta_vector = hn::Set(df, delta[r]);
    int64_t end = 0;
    for_each_vector(view.end(r), [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
      const auto p = exp(hn::Sub(load(p_row + i), lse_vector));
      const auto d_s = hn::Mul(p, hn::Sub(load(d_row + i), delta_vector));
      store(zero_beyond(p, lanes), p_row + i);
      store(zero_beyond(d_s, lanes), d_row + i);
      end = i + float_lanes();
    });
    for (; end < kAttentionBlock; end += float_lanes()) {
      store(hn::Zero(df), p_row + end);
      store(hn::Zero(df), d_row + end);
    }
    std::fill_n(p_row, view.begin(r), 0.0f);
    std::fill_n(d_row, view.begin(r), 0.0f);
  }
}

// Adds the gradients of one block of queries and the block of keys in scratch to d_queries and `sums`. lse and scratch
// hold queries from `origin` on.
HWY_INLINE void backward_block(const AttentionBlocks& shape, const AttentionBackwardScratch& s, const float* lse,
                               int64_t origin, int64_t query_block, int64_t key_block, const KeySums& sums) {
  const BlockView view = shape.view(query_block, key_block);
  const int64_t rows = shape.block_rows(query_block), padded = s.padded;
  const int64_t first_query = query_block * kAttentionBlock - origin, q = first_query * padded;
  SmallGemmArgs scores{.m = rows,
                       .n = kAttentionBlock,
                       .k = shape.head_dim,
                       .a = s.queries + q,
                       .a_row = padded,
                       .a_column = 1,
                       .b = s.keys_transposed,
                       .b_row = kAttentionBlock,
                       .c = s.probabilities,
                       .c_row = kAttentionBlock,
                       .triangle = view.diagonal ? Triangle::kLowerResult : Triangle::kNone};
  small_gemm(scores);
  scores.a = s.d_out + q;
  scores.b = s.values_transposed;
  scores.c = s.d_scores;
  small_gemm(scores);
  softmax_backward_block(s, lse + first_query, s.delta + first_query, rows, view);

  // Transposed blocks, read by columns: keys by queries.
  SmallGemmArgs by_key{.m = view.keys,
                       .n = padded,
                       .k = rows,
                       .a = s.probabilities,
                       .a_row = 1,
                       .a_column = kAttentionBlock,
                       .b = s.d_out + q,
                       .b_row = padded,
                       .c = sums.d_values,
                       .c_row = padded,
                       .mode = GradientMode::kAccumulate,
                       .triangle = view.diagonal ? Triangle::kUpperOperand : Triangle::kNone};
  small_gemm(by_key);
  by_key.a = s.d_scores;
  by_key.b = s.queries + q;
  by_key.c = sums.d_keys;
  small_gemm(by_key);
  small_gemm({.m = rows,
              .n = padded,
              .k = view.keys,
              .a = s.d_scores,
              .a_row = kAttentionBlock,
              .a_column = 1,
              .b = s.keys,
              .b_row = padded,
              .c = s.d_queries + q,
              .c_row = padded,
              .mode = GradientMode::kAccumulate,
              .triangle = view.diagonal ? Triangle::kLowerOperand : Triangle::kNone});
}

template <typename T>
float row_dot(const T* a, const T* b, int64_t n) {
  return sum_vectors(n, [&](int64_t i, int64_t count)
                            MANTISSA_VECTOR_LAMBDA { return hn::Mul(load(a + i, count), load(b + i, count)); });
}

// Adds the run to its sums and writes its d_q.
template <typename T>
void backward_run(const AttentionBackwardArgs& args, const AttentionSegments& shape, const AttentionBackwardScratch& s,
                  const SegmentRun& run) {
  const int64_t b = run.b, head = run.head, kv_head = head / shape.group(), dim = shape.head_dim, padded = s.padded;
  const int64_t origin = shape.first_query(run.begin), rows = shape.first_query(run.end) - origin;
  const T* qkv = args.qkv.data<T>();
  const T* out = args.out.data<T>() + shape.out_offset(b, head, origin);
  const T* d_out = args.d_out.data<T>() + shape.out_offset(b, head, origin);
  const float* lse = args.lse.data<float>() + shape.lse_offset(b, head, origin);
  read_block(qkv + shape.query_offset(b, head, origin), shape.qkv_row(), rows, dim, shape.scale, s.queries, padded);
  read_block(d_out, shape.out_row(), rows, dim, 1.0f, s.d_out, padded);
  std::fill(s.d_queries, s.d_queries + rows * padded, 0.0f);
  for (int64_t t = 0; t < rows; ++t) s.delta[t] = row_dot(out + t * shape.out_row(), d_out + t * shape.out_row(), dim);
  const int64_t key_blocks_begin = shape.key_blocks_begin(shape.segment_begin(run.begin));
  for (int64_t j = key_blocks_begin; j < shape.segment_key_blocks(run.end - 1); ++j) {
    const int64_t first = j * kAttentionBlock, keys = shape.block_rows(j);
    read_block(qkv + shape.key_offset(b, kv_head, first), shape.qkv_row(), keys, dim, 1.0f, s.keys, padded);
    read_block(qkv + shape.value_offset(b, kv_head, first), shape.qkv_row(), keys, dim, 1.0f, s.values, padded);
    transpose_block(s.keys, keys, padded, s.keys_transposed);
    transpose_block(s.values, keys, padded, s.values_transposed);
    add_segments(shape, run, j, padded, [&](int64_t begin, int64_t end, const KeySums& sums) MANTISSA_VECTOR_LAMBDA {
      for (int64_t i = begin; i < end; ++i) backward_block(shape, s, lse, origin, i, j, sums);
    });
  }
  write_block(s.d_queries, padded, rows, dim, shape.scale, args.d_qkv.data<T>() + shape.query_offset(b, head, origin),
              shape.qkv_row());
}

template <typename Element>
struct Widened {
  using T = Element;

  static int64_t columns(int64_t head_dim) { return padded_dim(head_dim); }
  static float key_scale(const AttentionShape&) { return 1.0f; }
  static AttentionBackwardScratch scratch(const AttentionSegments& shape, int64_t begin, int64_t end, int64_t keys) {
    return thread_scratch<AttentionBackwardScratch>(shape.first_query(end) - shape.first_query(begin), keys,
                                                    columns(shape.head_dim));
  }
  static void run(const AttentionBackwardArgs& args, const AttentionSegments& shape, const AttentionBackwardScratch& s,
                  const SegmentRun& run) {
    backward_run<T>(args, shape, s, run);
  }
};

AttentionBackwardKernels widened_kernels(DType dtype, int64_t head_dim) {
  AttentionBackwardKernels found{};
  dispatch(dtype, [&]<typename T>() { found = BackwardKernels<Widened<T>>::all(head_dim); });
  return found;
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(widened_kernels);

void run(const AttentionBackwardArgs& args) {
  check_args(args);
  const DType dtype = args.qkv.dtype();
  const int64_t dim = args.shape.head_dim;
  const AttentionBackwardKernels kernels =
      attends_in_pairs(dtype, dim) ? backward_pairs_kernels(dim) : HWY_DYNAMIC_DISPATCH(widened_kernels)(dtype, dim);
  if (!args.starts.defined()) return run_attention_backward({&args, 1}, kernels);
  DocumentCalls documents(args);
  documents.read_lse();
  run_attention_backward(documents.calls(), kernels);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
