// Gradient of out = p v, p = exp(s - lse), s = scale * q k^T, per sequence and key head:
//   delta = rowsum(out * d_out), d_p = d_out v^T, d_s = p * (d_p - delta),
//   d_v = p^T d_out, d_k = scale * d_s^T q, d_q = scale * d_s k.
//
// Probabilities are recomputed from lse, block by block. All sums are kept in fp32 scratch, in a fixed order (query
// heads of the group, key blocks, query blocks), and rounded once; one thread works on one key head with all its query
// heads, so that nothing depends on the number of threads. Non-finite values spread as in the forward pass.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022, appendix B.
#include "core/cpu/attention.h"

#include "core/backend/kernel_checks.h"
#include "core/cpu/attention_blocks.h"
#include "core/cpu/attention_pairs.h"
#include "core/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/attention_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/cpu/attention_block-inl.h"
#include "core/cpu/simd_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// One thread's fp32 working memory.
struct AttentionBackwardScratch {
  float *queries, *d_out, *d_queries;          // (T, padded) of one query head; queries are scaled
  float *d_keys, *d_values;                    // (T, padded) of the key head
  float *keys, *values;                        // (64, padded)
  float *keys_transposed, *values_transposed;  // (padded, 64)
  float *probabilities, *d_scores;             // (64, 64)
  float* delta;                                // (T)
  size_t bytes;

  AttentionBackwardScratch(ScratchLayout layout, const AttentionBlocks& shape, int64_t padded)
      : queries(layout.take<float>(shape.sequence_length * padded)),
        d_out(layout.take<float>(shape.sequence_length * padded)),
        d_queries(layout.take<float>(shape.sequence_length * padded)),
        d_keys(layout.take<float>(shape.sequence_length * padded)),
        d_values(layout.take<float>(shape.sequence_length * padded)),
        keys(layout.take<float>(kAttentionBlock * padded)),
        values(layout.take<float>(kAttentionBlock * padded)),
        keys_transposed(layout.take<float>(kAttentionBlock * padded)),
        values_transposed(layout.take<float>(kAttentionBlock * padded)),
        probabilities(layout.take<float>(kAttentionBlock * kAttentionBlock)),
        d_scores(layout.take<float>(kAttentionBlock * kAttentionBlock)),
        delta(layout.take<float>(shape.sequence_length)),
        bytes(layout.used_bytes()) {}
};

// Scores and d_p of a block become p and d_s in place; 0 beyond the visible keys.
HWY_INLINE void softmax_backward_block(const AttentionBackwardScratch& s, const float* lse, const float* delta,
                                       int64_t rows, int64_t keys, bool diagonal) {
  const FloatTag df;
  for (int64_t r = 0; r < rows; ++r) {
    float* p_row = s.probabilities + r * kAttentionBlock;
    float* d_row = s.d_scores + r * kAttentionBlock;
    const auto lse_vector = hn::Set(df, lse[r]), delta_vector = hn::Set(df, delta[r]);
    int64_t end = 0;
    for_each_vector(diagonal ? std::min(keys, r + 1) : keys, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
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
  }
}

// Adds one block of queries against one block of keys into d_queries, d_keys and d_values.
HWY_INLINE void backward_block(const AttentionBlocks& shape, const AttentionBackwardScratch& s, const float* lse,
                               int64_t query_block, int64_t key_block, int64_t padded) {
  const bool diagonal = shape.on_diagonal(query_block, key_block);
  const int64_t rows = shape.block_rows(query_block), keys = shape.block_rows(key_block);
  const int64_t first_query = query_block * kAttentionBlock;
  const int64_t q = first_query * padded, k = key_block * kAttentionBlock * padded;
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
                       .triangle = diagonal ? Triangle::kLowerResult : Triangle::kNone};
  small_gemm(scores);
  scores.a = s.d_out + q;
  scores.b = s.values_transposed;
  scores.c = s.d_scores;
  small_gemm(scores);
  softmax_backward_block(s, lse + first_query, s.delta + first_query, rows, keys, diagonal);

  // The transposed blocks, read by columns: key by query.
  SmallGemmArgs by_key{.m = keys,
                       .n = padded,
                       .k = rows,
                       .a = s.probabilities,
                       .a_row = 1,
                       .a_column = kAttentionBlock,
                       .b = s.d_out + q,
                       .b_row = padded,
                       .c = s.d_values + k,
                       .c_row = padded,
                       .mode = GradientMode::kAccumulate,
                       .triangle = diagonal ? Triangle::kUpperOperand : Triangle::kNone};
  small_gemm(by_key);
  by_key.a = s.d_scores;
  by_key.b = s.queries + q;
  by_key.c = s.d_keys + k;
  small_gemm(by_key);
  small_gemm({.m = rows,
              .n = padded,
              .k = keys,
              .a = s.d_scores,
              .a_row = kAttentionBlock,
              .a_column = 1,
              .b = s.keys,
              .b_row = padded,
              .c = s.d_queries + q,
              .c_row = padded,
              .mode = GradientMode::kAccumulate,
              .triangle = diagonal ? Triangle::kLowerOperand : Triangle::kNone});
}

template <typename T>
float row_dot(const T* a, const T* b, int64_t n) {
  return sum_vectors(n, [&](int64_t i, int64_t count)
                            MANTISSA_VECTOR_LAMBDA { return hn::Mul(load(a + i, count), load(b + i, count)); });
}

// Adds one query head into d_keys and d_values, and writes its d_q.
template <typename T>
void backward_query_head(const AttentionBackwardArgs& args, const AttentionBlocks& shape,
                         const AttentionBackwardScratch& s, int64_t b, int64_t head, int64_t padded) {
  const int64_t kv_head = head / shape.group(), length = shape.sequence_length, dim = shape.head_dim;
  const T* qkv = args.qkv.data<T>();
  const T* out = args.out.data<T>() + shape.out_offset(b, head, 0);
  const T* d_out = args.d_out.data<T>() + shape.out_offset(b, head, 0);
  const float* lse = args.lse.data<float>() + shape.lse_offset(b, head, 0);
  read_block(qkv + shape.query_offset(b, head, 0), shape.qkv_row(), length, dim, shape.scale, s.queries, padded);
  read_block(d_out, shape.out_row(), length, dim, 1.0f, s.d_out, padded);
  std::fill(s.d_queries, s.d_queries + length * padded, 0.0f);
  for (int64_t t = 0; t < length; ++t)
    s.delta[t] = row_dot(out + t * shape.out_row(), d_out + t * shape.out_row(), dim);
  for (int64_t j = 0; j < shape.blocks(); ++j) {
    const int64_t first = j * kAttentionBlock, keys = shape.block_rows(j);
    read_block(qkv + shape.key_offset(b, kv_head, first), shape.qkv_row(), keys, dim, 1.0f, s.keys, padded);
    read_block(qkv + shape.value_offset(b, kv_head, first), shape.qkv_row(), keys, dim, 1.0f, s.values, padded);
    transpose_block(s.keys, keys, padded, s.keys_transposed);
    transpose_block(s.values, keys, padded, s.values_transposed);
    for (int64_t i = shape.mask == Mask::kCausal ? j : 0; i < shape.blocks(); ++i) {
      backward_block(shape, s, lse, i, j, padded);
    }
  }
  write_block(s.d_queries, padded, length, dim, shape.scale, args.d_qkv.data<T>() + shape.query_offset(b, head, 0),
              shape.qkv_row());
}

template <typename T>
void backward_kv_head(const AttentionBackwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t kv_head) {
  thread_local Scratch memory;
  const int64_t padded = padded_dim(shape.head_dim), length = shape.sequence_length, dim = shape.head_dim;
  const AttentionBackwardScratch s(
      ScratchLayout(memory.reserve(AttentionBackwardScratch(ScratchLayout(), shape, padded).bytes)), shape, padded);
  std::fill(s.d_keys, s.d_keys + length * padded, 0.0f);
  std::fill(s.d_values, s.d_values + length * padded, 0.0f);
  for (int64_t g = 0; g < shape.group(); ++g) {
    backward_query_head<T>(args, shape, s, b, kv_head * shape.group() + g, padded);
  }
  T* d_qkv = args.d_qkv.data<T>();
  write_block(s.d_keys, padded, length, dim, 1.0f, d_qkv + shape.key_offset(b, kv_head, 0), shape.qkv_row());
  write_block(s.d_values, padded, length, dim, 1.0f, d_qkv + shape.value_offset(b, kv_head, 0), shape.qkv_row());
}

void backward_kv_head_any(const AttentionBackwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t kv_head) {
  dispatch(args.qkv.dtype(), [&]<typename T>() { backward_kv_head<T>(args, shape, b, kv_head); });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(backward_kv_head_any);

void attention_backward(const AttentionBackwardArgs& args) {
  const AttentionBlocks shape(check_args(args));
  const int64_t heads = shape.batch * shape.num_kv_heads;
  const auto backward_head =
      attends_in_pairs(args.qkv.dtype(), shape.head_dim) ? backward_pairs : HWY_DYNAMIC_DISPATCH(backward_kv_head_any);
  parallel_for(heads, [&](int64_t index) {
    backward_head(args, shape, index / shape.num_kv_heads, index % shape.num_kv_heads);
  });
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
