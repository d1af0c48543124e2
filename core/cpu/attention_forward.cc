// out = softmax(scale * q k^T) v per sequence and head, lse = log(sum exp(scale * q k^T)).
//
// Blocks of 64 queries against blocks of 64 keys with a running maximum m and sum l per query:
//   m' = max(m, rowmax(s)), p = exp(s - m'), l = exp(m - m') l + rowsum(p), o = exp(m - m') o + p v;  out = o / l.
// Operands are widened to fp32 once per head; scores, probabilities and sums stay in fp32; out is rounded once. Every
// query goes over the key blocks in order, so nothing depends on which thread works on it. A NaN score makes p, l and
// out NaN even if the maximum misses it. On the causal diagonal a non-finite value may spread to earlier queries of the
// same block (0 * NaN); it never vanishes.
//
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention", NeurIPS 2022; Milakov & Gimelshein, "Online normalizer
// calculation for softmax", 2018.
#include <cmath>
#include <limits>

#include "core/cpu/attention.h"

#include "core/backend/kernel_checks.h"
#include "core/cpu/attention_blocks.h"
#include "core/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/attention_forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/cpu/attention_block-inl.h"
#include "core/cpu/simd_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// One thread's fp32 working memory.
struct AttentionForwardScratch {
  float* keys_transposed;           // per key block (padded, 64)
  float* values;                    // (T, padded)
  float *queries, *sums;            // (64, padded); queries holds keys while they are transposed
  float* scores;                    // (64, 64), then probabilities
  float *maxima, *totals;           // (64), running
  float *references, *corrections;  // (64), of one block
  size_t bytes;

  AttentionForwardScratch(ScratchLayout layout, const AttentionBlocks& shape, int64_t padded)
      : keys_transposed(layout.take<float>(shape.blocks() * kAttentionBlock * padded)),
        values(layout.take<float>(shape.sequence_length * padded)),
        queries(layout.take<float>(kAttentionBlock * padded)),
        sums(layout.take<float>(kAttentionBlock * padded)),
        scores(layout.take<float>(kAttentionBlock * kAttentionBlock)),
        maxima(layout.take<float>(kAttentionBlock)),
        totals(layout.take<float>(kAttentionBlock)),
        references(layout.take<float>(kAttentionBlock)),
        corrections(layout.take<float>(kAttentionBlock)),
        bytes(layout.used_bytes()) {}
};

// Largest of row[0, count). Whole vectors may be read: rows are padded.
HWY_INLINE float row_max(const float* row, int64_t count) {
  const FloatTag df;
  const auto lowest = hn::Set(df, -std::numeric_limits<float>::infinity());
  auto largest = lowest;
  for_each_vector(count, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
    const auto mask = hn::FirstN(df, static_cast<size_t>(lanes));
    largest = hn::Max(largest, hn::IfThenElse(mask, load(row + i), lowest));
  });
  return hn::GetLane(hn::MaxOfLanes(df, largest));
}

// row[j] = exp(row[j] - maximum) for j < count, 0 up to kAttentionBlock. Returns the sum.
HWY_INLINE float exponentiate_row(float* row, int64_t count, float maximum) {
  const FloatTag df;
  const auto offset = hn::Set(df, maximum);
  auto sum = hn::Zero(df);
  int64_t end = 0;
  for_each_vector(count, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
    const auto p = zero_beyond(exp(hn::Sub(load(row + i), offset)), lanes);
    store(p, row + i);
    sum = hn::Add(sum, p);
    end = i + float_lanes();
  });
  for (; end < kAttentionBlock; end += float_lanes()) store(hn::Zero(df), row + end);
  return hn::GetLane(hn::SumOfLanes(df, sum));
}

HWY_INLINE void scale_row(float* row, int64_t padded, float factor) {
  const auto v = hn::Set(FloatTag(), factor);
  for (int64_t i = 0; i < padded; i += float_lanes()) store(hn::Mul(load(row + i), v), row + i);
}

// Scores of one block become probabilities against the new running maximum; earlier sums are rescaled to it.
HWY_INLINE void softmax_block(const AttentionForwardScratch& s, int64_t rows, int64_t keys, bool diagonal,
                              int64_t padded) {
  const FloatTag df;
  const auto lowest = hn::Set(df, -std::numeric_limits<float>::infinity());
  const auto visible = [&](int64_t r) { return diagonal ? std::min(keys, r + 1) : keys; };
  for (int64_t r = 0; r < rows; ++r) s.references[r] = row_max(s.scores + r * kAttentionBlock, visible(r));
  for (int64_t r = 0; r < rows; r += float_lanes()) {  // all are padded to whole vectors
    const auto before = load(s.maxima + r), block = load(s.references + r);
    const auto maximum = hn::IfThenElse(hn::Gt(before, block), before, block);
    // While every score is -Inf any finite reference gives p = 0; -Inf itself would give NaN.
    const auto reference = hn::IfThenElse(hn::Eq(maximum, lowest), hn::Zero(df), maximum);
    const auto correction = exp(hn::Sub(before, reference));
    store(maximum, s.maxima + r);
    store(reference, s.references + r);
    store(correction, s.corrections + r);
    store(hn::Mul(load(s.totals + r), correction), s.totals + r);
  }
  for (int64_t r = 0; r < rows; ++r) {
    s.totals[r] += exponentiate_row(s.scores + r * kAttentionBlock, visible(r), s.references[r]);
    if (s.corrections[r] != 1.0f) scale_row(s.sums + r * padded, padded, s.corrections[r]);
  }
}

template <typename T>
void attend_query_block(const AttentionForwardArgs& args, const AttentionBlocks& shape,
                        const AttentionForwardScratch& s, int64_t b, int64_t head, int64_t query_block,
                        int64_t padded) {
  const int64_t rows = shape.block_rows(query_block), first = query_block * kAttentionBlock;
  const T* qkv = args.qkv.data<T>();
  read_block(qkv + shape.query_offset(b, head, first), shape.qkv_row(), rows, shape.head_dim, shape.scale, s.queries,
             padded);
  std::fill(s.sums, s.sums + rows * padded, 0.0f);
  std::fill(s.maxima, s.maxima + kAttentionBlock, -std::numeric_limits<float>::infinity());
  std::fill(s.totals, s.totals + kAttentionBlock, 0.0f);
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
                .c = s.scores,
                .c_row = kAttentionBlock,
                .triangle = diagonal ? Triangle::kLowerResult : Triangle::kNone});
    softmax_block(s, rows, keys, diagonal, padded);
    small_gemm({.m = rows,
                .n = padded,
                .k = keys,
                .a = s.scores,
                .a_row = kAttentionBlock,
                .a_column = 1,
                .b = s.values + j * kAttentionBlock * padded,
                .b_row = padded,
                .c = s.sums,
                .c_row = padded,
                .mode = GradientMode::kAccumulate,
                .triangle = diagonal ? Triangle::kLowerOperand : Triangle::kNone});
  }
  float* lse = args.lse.data<float>() + shape.lse_offset(b, head, first);
  for (int64_t r = 0; r < rows; ++r) {
    scale_row(s.sums + r * padded, padded, 1.0f / s.totals[r]);
    lse[r] = s.maxima[r] + std::log(s.totals[r]);
  }
  write_block(s.sums, padded, rows, shape.head_dim, 1.0f, args.out.data<T>() + shape.out_offset(b, head, first),
              shape.out_row());
}

// Query blocks [begin, end) of one head.
template <typename T>
void attend(const AttentionForwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t head, int64_t begin,
            int64_t end) {
  thread_local Scratch memory;
  const int64_t padded = padded_dim(shape.head_dim), dim = shape.head_dim, kv_head = head / shape.group();
  const AttentionForwardScratch s(
      ScratchLayout(memory.reserve(AttentionForwardScratch(ScratchLayout(), shape, padded).bytes)), shape, padded);
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
// threads but widen the keys and values of a head once each.
constexpr int64_t kWantedTasks = 32;
}  // namespace

void attention_forward(const AttentionForwardArgs& args) {
  const AttentionBlocks shape(check_args(args));
  const int64_t heads = shape.batch * shape.num_heads;
  const int64_t runs = std::clamp<int64_t>((kWantedTasks + heads - 1) / heads, 1, shape.blocks());
  const auto attend_run = HWY_DYNAMIC_DISPATCH(attend_any);
  parallel_for(runs * heads, [&](int64_t task) {
    const int64_t from_end = runs - 1 - task / heads, index = task % heads;  // causal: the long runs first
    attend_run(args, shape, index / shape.num_heads, index % shape.num_heads, from_end * shape.blocks() / runs,
               (from_end + 1) * shape.blocks() / runs);
  });
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
