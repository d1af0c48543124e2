// Both passes of attention:
//   out = softmax(scale * q k^T) v per sequence and head, lse = log(sum exp(scale * q k^T));
//   with p = exp(s - lse), s = scale * q k^T, delta = rowsum(out * d_out), d_p = d_out v^T, d_s = p * (d_p - delta):
//   d_v = p^T d_out, d_k = scale * d_s^T q, d_q = scale * d_s k.
//
// Blocks of 64 queries against blocks of 64 keys (blocks-inl.h). A task widens its operands to fp32 once. Scores,
// probabilities and sums stay in fp32; results are rounded once. bf16 has its own kernels on processors that multiply
// pairs of it (pairs_cpu.h). Every query visits the key blocks in order, so nothing depends on which thread works on
// it. On the causal diagonal a non-finite value may spread to earlier queries of the same block (0 * NaN); it never
// vanishes.
//
// The backward pass recomputes probabilities from lse, block by block. All sums are kept in fp32 scratch, in a fixed
// order (d_q: key blocks; d_k and d_v: the segments of segments_cpu.h, then query blocks): nothing depends on the
// number of threads.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022, with appendix B.
#include <algorithm>
#include <span>
#include <vector>

#include "core/kernels/attention/pairs_cpu.h"
#include "core/kernels/documents.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention/attention_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernels/attention/blocks-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// One thread's fp32 working memory.
struct AttentionForwardScratch {
  ScratchLayout layout;
  const AttentionBlocks& shape;
  int64_t padded;
  float* keys_transposed = layout.take<float>(shape.blocks() * kAttentionBlock * padded);  // per key block (padded, 64)
  float* values = layout.take<float>(shape.sequence_length * padded);                      // (T, padded)
  float* queries = layout.take<float>(kAttentionBlock * padded);  // (64, padded); holds keys while they are transposed
  RunningSoftmax softmax{layout, padded};
  size_t bytes = layout.used_bytes();
};

template <typename T>
void attend_query_block(const AttentionForwardArgs& args, const AttentionBlocks& shape,
                        const AttentionForwardScratch& s, int64_t b, int64_t head, int64_t query_block,
                        int64_t padded) {
  const int64_t rows = shape.block_rows(query_block), first = query_block * kAttentionBlock;
  const T* qkv = args.qkv.data<T>();
  read_block(qkv + shape.query_offset(b, head, first), shape.qkv_row(), rows, shape.head_dim, shape.scale, s.queries,
             padded);
  s.softmax.begin(rows, padded);
  for (int64_t j = shape.key_blocks_begin(query_block); j < shape.key_blocks_end(query_block); ++j) {
    const BlockView view = shape.view(query_block, j);
    small_gemm({.m = rows,
                .n = kAttentionBlock,
                .k = shape.head_dim,
                .a = {s.queries, padded},
                .b = {s.keys_transposed + j * kAttentionBlock * padded, kAttentionBlock},
                .c = {s.softmax.scores, kAttentionBlock},
                .triangle = view.diagonal ? Triangle::kLowerResult : Triangle::kNone});
    softmax_block(s.softmax, rows, view, 1.0f, padded);
    small_gemm({.m = rows,
                .n = padded,
                .k = view.keys,
                .a = {s.softmax.scores, kAttentionBlock},
                .b = {s.values + j * kAttentionBlock * padded, padded},
                .c = {s.softmax.sums, padded},
                .mode = GradientMode::kAccumulate,
                .triangle = view.diagonal ? Triangle::kLowerOperand : Triangle::kNone});
  }
  finish_queries<T>(args, shape, s.softmax, b, head, query_block, padded);
}

// Query blocks [begin, end) of one head.
template <typename T>
void attend(const AttentionForwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t head, int64_t begin,
            int64_t end) {
  const int64_t padded = padded_dim(shape.head_dim), dim = shape.head_dim, kv_head = head / shape.group();
  const auto s = thread_scratch<AttentionForwardScratch>(shape, padded);
  const T* qkv = args.qkv.data<T>();
  for (int64_t j = shape.key_blocks_begin(begin); j < shape.key_blocks_end(end - 1); ++j) {
    const int64_t first = j * kAttentionBlock, keys = shape.block_rows(j), offset = first * padded;
    read_block(qkv + shape.key_offset(b, kv_head, first), shape.qkv_row(), keys, dim, 1.0f, s.queries, padded);
    transpose_block(s.queries, keys, padded, s.keys_transposed + offset);
    read_block(qkv + shape.value_offset(b, kv_head, first), shape.qkv_row(), keys, dim, 1.0f, s.values + offset,
               padded);
  }
  for (int64_t i = begin; i < end; ++i) attend_query_block<T>(args, shape, s, b, head, i, padded);
}

void attend_any(const AttentionForwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t head, int64_t begin,
                int64_t end) {
  dispatch(args.qkv.dtype(), [&]<typename T>() { attend<T>(args, shape, b, head, begin, end); });
}

// ---- The backward pass

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
                       .a = {s.queries + q, padded},
                       .b = {s.keys_transposed, kAttentionBlock},
                       .c = {s.probabilities, kAttentionBlock},
                       .triangle = view.diagonal ? Triangle::kLowerResult : Triangle::kNone};
  small_gemm(scores);
  scores.a.data = s.d_out + q;
  scores.b.data = s.values_transposed;
  scores.c.data = s.d_scores;
  small_gemm(scores);
  softmax_backward_block(s, lse + first_query, s.delta + first_query, rows, view);

  // Transposed blocks, read by columns: keys by queries.
  SmallGemmArgs by_key{.m = view.keys,
                       .n = padded,
                       .k = rows,
                       .a = {s.probabilities, 1, kAttentionBlock},
                       .b = {s.d_out + q, padded},
                       .c = {sums.d_values, padded},
                       .mode = GradientMode::kAccumulate,
                       .triangle = view.diagonal ? Triangle::kUpperOperand : Triangle::kNone};
  small_gemm(by_key);
  by_key.a.data = s.d_scores;
  by_key.b.data = s.queries + q;
  by_key.c.data = sums.d_keys;
  small_gemm(by_key);
  small_gemm({.m = rows,
              .n = padded,
              .k = view.keys,
              .a = {s.d_scores, kAttentionBlock},
              .b = {s.keys, padded},
              .c = {s.d_queries + q, padded},
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
  static constexpr auto run = backward_run<T>;
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

HWY_EXPORT(attend_any);
HWY_EXPORT(widened_kernels);

namespace {

// ---- Documents (core/kernels/documents.h): each is a sequence of its own. So the content of other documents changes
// no bit of its results, and only pairs within documents cost work.

// A call for each document, the longest first, which balances tasks best. Their lse are in `lse`, by document, head and
// position.
template <typename Args>
std::vector<Args> calls_by_document(const Args& args, std::vector<float>& lse) {
  const int64_t length = args.shape.sequence_length, rows = args.shape.batch * length, heads = args.shape.num_heads;
  check_start_values(Args::kName.data(), args.starts, length);
  const int32_t* const starts = args.starts.template data<int32_t>();
  std::vector<Args> calls;
  lse.resize(static_cast<size_t>(args.lse.numel()));
  for (int64_t begin = 0, end = 1; begin < rows; begin = end++) {
    while (end < rows && starts[end] != end % length) ++end;
    Args& call = calls.emplace_back(args);
    for (Tensor* const operand : Args::operands(call)) {
      if (operand->shape().rank() == 2) *operand = operand->rows(begin, end - begin);
    }
    auto* const memory = reinterpret_cast<std::byte*>(lse.data() + begin * heads);
    const auto bytes = static_cast<size_t>((end - begin) * heads) * sizeof(float);
    call.lse = Tensor(std::make_shared<Storage>(memory, bytes, args.lse.device(), Storage::Release()), DType::kF32,
                      {1, heads, end - begin});
    call.starts = {};
    call.shape.batch = 1;
    call.shape.sequence_length = end - begin;
  }
  std::stable_sort(calls.begin(), calls.end(),
                   [](const Args& a, const Args& b) { return a.shape.sequence_length > b.shape.sequence_length; });
  return calls;
}

// Calls body(lse of a document and head in `lse`, the same in `args`, positions).
template <typename Args, typename Body>
void each_lse_row(const Args& args, const std::vector<Args>& calls, const std::vector<float>& lse, const Body& body) {
  const AttentionShape& shape = args.shape;
  for (const Args& call : calls) {
    float* const own = call.lse.template data<float>();
    const int64_t row = (own - lse.data()) / shape.num_heads, count = call.shape.sequence_length;
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      const int64_t at = shape.lse_offset(row / shape.sequence_length, head, row % shape.sequence_length);
      body(own + head * count, args.lse.template data<float>() + at, count);
    }
  }
}

// Heads are cut into runs of query blocks until there are about this many tasks. More runs balance better over many
// threads, but each run widens the head's keys and values again.
constexpr int64_t kWantedTasks = 32;

// Query blocks [begin, end) of a head of a call.
struct AttentionRun {
  const AttentionForwardArgs* args;
  int64_t b, head, begin, end;
};

void attend_all(std::span<const AttentionForwardArgs> calls) {
  std::vector<AttentionRun> tasks;
  for (const AttentionForwardArgs& args : calls) {
    const int64_t heads = args.shape.batch * args.shape.num_heads, blocks = AttentionBlocks(args.shape).blocks();
    const int64_t wanted = divide_up(kWantedTasks, heads * static_cast<int64_t>(calls.size()));
    const int64_t runs = std::clamp<int64_t>(wanted, 1, blocks);
    for (int64_t run = runs - 1; run >= 0; --run) {  // causal: long runs first
      for (int64_t head = 0; head < heads; ++head) {
        tasks.push_back({&args, head / args.shape.num_heads, head % args.shape.num_heads, run * blocks / runs,
                         (run + 1) * blocks / runs});
      }
    }
  }
  const AttentionForwardArgs& any = calls.front();
  const auto attend_run =
      attends_in_pairs(any.qkv.dtype(), any.shape.head_dim) ? attend_pairs : HWY_DYNAMIC_DISPATCH(attend_any);
  parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t index) {
    const AttentionRun& task = tasks[static_cast<size_t>(index)];
    attend_run(*task.args, AttentionBlocks(task.args->shape), task.b, task.head, task.begin, task.end);
  });
}

}  // namespace

void run(const AttentionForwardArgs& args) {
  check_args(args);
  if (!args.starts.defined()) return attend_all({&args, 1});
  std::vector<float> lse;
  const auto calls = calls_by_document(args, lse);
  attend_all(calls);
  each_lse_row(args, calls, lse, [](const float* own, float* given, int64_t count) { std::copy_n(own, count, given); });
}

void run(const AttentionBackwardArgs& args) {
  check_args(args);
  const DType dtype = args.qkv.dtype();
  const int64_t dim = args.shape.head_dim;
  const AttentionBackwardKernels kernels =
      attends_in_pairs(dtype, dim) ? backward_pairs_kernels(dim) : HWY_DYNAMIC_DISPATCH(widened_kernels)(dtype, dim);
  if (!args.starts.defined()) return run_attention_backward({&args, 1}, kernels);
  std::vector<float> lse;
  const auto calls = calls_by_document(args, lse);
  each_lse_row(args, calls, lse, [](float* own, const float* given, int64_t count) { std::copy_n(given, count, own); });
  run_attention_backward(calls, kernels);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
