// out = softmax(scale * q k^T) v per sequence and head, lse = log(sum exp(scale * q k^T)).
//
// Blocks of 64 queries against blocks of 64 keys (blocks-inl.h). A task widens its operands to fp32 once.
// Scores, probabilities and sums stay in fp32; out is rounded once. bf16 has its own kernels on processors that
// multiply pairs of it (pairs_cpu.h). Every query visits the key blocks in order, so nothing depends on which
// thread works on it. On the causal diagonal a non-finite value may spread to earlier queries of the same block (0 *
// NaN); it never vanishes.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022.
#include "core/kernels/attention/pairs_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention/forward_cpu.cc"
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
  for (int64_t j = 0; j < shape.key_blocks_end(query_block); ++j) {
    const bool diagonal = shape.on_diagonal(query_block, j);
    const int64_t keys = shape.block_rows(j);
    small_gemm({.m = rows,
                .n = kAttentionBlock,
                .k = shape.head_dim,
                .a = s.queries,
                .a_row = padded,
                .a_column = 1,
                .b = s.keys_transposed + j * kAttentionBlock * padded,
                .b_row = kAttentionBlock,
                .c = s.softmax.scores,
                .c_row = kAttentionBlock,
                .triangle = diagonal ? Triangle::kLowerResult : Triangle::kNone});
    softmax_block(s.softmax, rows, keys, diagonal, 1.0f, padded);
    small_gemm({.m = rows,
                .n = padded,
                .k = keys,
                .a = s.softmax.scores,
                .a_row = kAttentionBlock,
                .a_column = 1,
                .b = s.values + j * kAttentionBlock * padded,
                .b_row = padded,
                .c = s.softmax.sums,
                .c_row = padded,
                .mode = GradientMode::kAccumulate,
                .triangle = diagonal ? Triangle::kLowerOperand : Triangle::kNone});
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
  for (int64_t j = 0; j < shape.key_blocks_end(end - 1); ++j) {
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

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(attend_any);

namespace {
// Heads are cut into runs of query blocks until there are about this many tasks. More runs balance better over many
// threads, but each run widens the head's keys and values again.
constexpr int64_t kWantedTasks = 32;
}  // namespace

void run(const AttentionForwardArgs& args) {
  check_args(args);
  const AttentionBlocks shape(args.shape);
  const int64_t heads = shape.batch * shape.num_heads;
  const int64_t runs = std::clamp<int64_t>((kWantedTasks + heads - 1) / heads, 1, shape.blocks());
  const auto attend_run =
      attends_in_pairs(args.qkv.dtype(), shape.head_dim) ? attend_pairs : HWY_DYNAMIC_DISPATCH(attend_any);
  parallel_for(runs * heads, [&](int64_t task) {
    const int64_t from_end = runs - 1 - task / heads, index = task % heads;  // causal: long runs first
    attend_run(args, shape, index / shape.num_heads, index % shape.num_heads, from_end * shape.blocks() / runs,
               (from_end + 1) * shape.blocks() / runs);
  });
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
