// out = softmax(scale * q k^T) v per sequence and head, lse = log(sum exp(scale * q k^T)).
//
// Blocks of 64 queries against blocks of 64 keys (blocks-inl.h). A task widens its operands to fp32 once.
// Scores, probabilities and sums stay in fp32; out is rounded once. bf16 has its own kernels on processors that
// multiply pairs of it (pairs_cpu.h). Every query visits the key blocks in order, so nothing depends on which
// thread works on it. On the causal diagonal a non-finite value may spread to earlier queries of the same block (0 *
// NaN); it never vanishes.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022.
#include <span>
#include <vector>

#include "core/kernels/attention/documents_cpu.h"
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
  for (int64_t j = shape.key_blocks_begin(query_block); j < shape.key_blocks_end(query_block); ++j) {
    const BlockView view = shape.view(query_block, j);
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
                .triangle = view.diagonal ? Triangle::kLowerResult : Triangle::kNone});
    softmax_block(s.softmax, rows, view, 1.0f, padded);
    small_gemm({.m = rows,
                .n = padded,
                .k = view.keys,
                .a = s.softmax.scores,
                .a_row = kAttentionBlock,
                .a_column = 1,
                .b = s.values + j * kAttentionBlock * padded,
                .b_row = padded,
                .c = s.softmax.sums,
                .c_row = padded,
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

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(attend_any);

namespace {
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
  DocumentCalls documents(args);
  attend_all(documents.calls());
  documents.write_lse();
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
