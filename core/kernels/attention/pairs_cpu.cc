// Both passes of attention on pairs of bf16, and products of packed pairs. The steps are those of attention_cpu.cc.
#include "core/kernels/attention/pairs_cpu.h"
#include "core/kernels/gemm/gemm_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention/pairs_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/kernels/attention/blocks-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// One thread's working memory.
struct PairForwardScratch {
  ScratchLayout layout;
  const AttentionBlocks& shape;
  int64_t columns;
  // A part of (dim / 2, 64) for each key block.
  uint32_t* keys = layout.take<uint32_t>(shape.blocks() * kAttentionBlock * shape.head_dim / 2);
  uint32_t* values = layout.take<uint32_t>(shape.blocks() * kBlockPairs * columns);  // for each key block (32, columns)
  BFloat16* queries = layout.take<BFloat16>(kAttentionBlock * shape.head_dim);       // (64, dim)
  BFloat16* probabilities = layout.take<BFloat16>(kAttentionBlock * kAttentionBlock);  // (64, 64)
  RunningSoftmax softmax{layout, columns};
  size_t bytes = layout.used_bytes();
};

void attend_pairs_block(const AttentionForwardArgs& args, const AttentionBlocks& shape, const PairForwardScratch& s,
                        int64_t b, int64_t head, int64_t query_block) {
  const int64_t dim = shape.head_dim, columns = panel_columns(dim), rows = shape.block_rows(query_block);
  const int64_t whole_rows = round_up(rows, kPanelRows);
  copy_rows({args.qkv.data<BFloat16>() + shape.query_offset(b, head, 0), shape.qkv_row(), shape.sequence_length, dim},
            query_block, s.queries);
  s.softmax.begin(whole_rows, columns);
  // Rows beyond the sequence are multiplied too, but their results are never read. Clear their probabilities: stale
  // values could be NaN, which must not occur.
  std::fill(s.probabilities + rows * kAttentionBlock, s.probabilities + whole_rows * kAttentionBlock, BFloat16{});
  for (int64_t j = shape.key_blocks_begin(query_block); j < shape.key_blocks_end(query_block); ++j) {
    const BlockView view = shape.view(query_block, j);
    multiply_rows({.a = {reinterpret_cast<const uint32_t*>(s.queries), dim / 2},
                   .b = {s.keys + j * kAttentionBlock * dim / 2, kPanelColumns * dim / 2},
                   .rows = whole_rows,
                   .columns = kAttentionBlock,
                   .depth = dim / 2,
                   .c = {s.softmax.scores, kAttentionBlock},
                   .store = TileStore::kFp32},
                  view.diagonal ? PairTriangle::kLowerResult : PairTriangle::kNone);
    softmax_block(s.softmax, rows, view, shape.scale, columns);
    for (int64_t i = 0; i < rows * kAttentionBlock; i += float_lanes()) {
      store(load(s.softmax.scores + i), s.probabilities + i);
    }
    multiply_rows({.a = {reinterpret_cast<const uint32_t*>(s.probabilities), kBlockPairs},
                   .b = {s.values + j * kBlockPairs * columns, kBlockPairs * kPanelColumns},
                   .rows = whole_rows,
                   .columns = columns,
                   .depth = kBlockPairs,
                   .c = {s.softmax.sums, columns},
                   .store = TileStore::kAddFp32},
                  view.diagonal ? PairTriangle::kLowerOperand : PairTriangle::kNone);
  }
  finish_queries<BFloat16>(args, shape, s.softmax, b, head, query_block, columns);
}

void attend_pairs_run(const AttentionForwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t head,
                      int64_t begin, int64_t end) {
  const int64_t dim = shape.head_dim, columns = panel_columns(dim), kv_head = head / shape.group();
  const auto s = thread_scratch<PairForwardScratch>(shape, columns);
  const BFloat16* qkv = args.qkv.data<BFloat16>();
  const HeadRows keys{qkv + shape.key_offset(b, kv_head, 0), shape.qkv_row(), shape.sequence_length, dim};
  const HeadRows values{qkv + shape.value_offset(b, kv_head, 0), shape.qkv_row(), shape.sequence_length, dim};
  for (int64_t j = shape.key_blocks_begin(begin); j < shape.key_blocks_end(end - 1); ++j) {
    pack_rows_as_columns(keys, j, s.keys + j * kAttentionBlock * dim / 2);
    pack_row_pairs(values, j, s.values + j * kBlockPairs * columns);
  }
  for (int64_t i = begin; i < end; ++i) attend_pairs_block(args, shape, s, b, head, i);
}

// ---- The backward pass

// One thread's working memory, for the queries (rows, in whole blocks) of a query head and the sums of keys.
struct PairBackwardScratch {
  ScratchLayout layout;
  int64_t dim, blocks, key_blocks;
  int64_t columns = panel_columns(dim), rows = blocks * kAttentionBlock, summed_keys = key_blocks * kAttentionBlock;
  // The next three belong to one key block.
  uint32_t* key_columns = layout.take<uint32_t>(kAttentionBlock * dim / 2);
  uint32_t* value_columns = layout.take<uint32_t>(kAttentionBlock * dim / 2);
  uint32_t* key_pairs = layout.take<uint32_t>(kBlockPairs * columns);
  BFloat16* queries = layout.take<BFloat16>(rows * dim);                           // (rows, dim)
  BFloat16* d_out = layout.take<BFloat16>(rows * dim);                             // (rows, dim)
  uint32_t* query_pairs = layout.take<uint32_t>(rows / 2 * columns);               // per block: (32, columns)
  uint32_t* d_out_pairs = layout.take<uint32_t>(rows / 2 * columns);               // per block: (32, columns)
  float* d_queries = layout.take<float>(rows * columns);                           // (rows, columns)
  KeySums total = take_sums(layout, summed_keys, columns);                         // (summed_keys, columns)
  KeySums part = take_sums(layout, kAttentionBlock, columns);                      // (64, columns)
  float* scores = layout.take<float>(kAttentionBlock * kAttentionBlock);           // (64, 64)
  float* d_probabilities = layout.take<float>(kAttentionBlock * kAttentionBlock);  // (64, 64)
  // (64 queries, 64 keys) by keys: panels of 8, pairs of queries.
  uint32_t* p_panels = layout.take<uint32_t>(kBlockPairs * kAttentionBlock);
  uint32_t* d_score_panels = layout.take<uint32_t>(kBlockPairs * kAttentionBlock);
  BFloat16* d_scores = layout.take<BFloat16>(kAttentionBlock * kAttentionBlock);  // (64, 64)
  float* delta = layout.take<float>(rows);                                        // (rows)
  size_t bytes = layout.used_bytes();
};

// Words of two fp32 rows, rounded to bf16.
HWY_INLINE WordVec rounded_pairs(FloatVec even, FloatVec odd) {
  const WordTag du;
  return hn::Or(hn::ShiftRight<16>(bf16_in_upper_half(even)),
                hn::And(bf16_in_upper_half(odd), hn::Set(du, 0xffff0000u)));
}

// Stores the words of a pair of rows, for keys from `key` on, as row `pair` of panels of 8 keys.
HWY_INLINE void store_pairs(WordVec words, int64_t pair, int64_t key, uint32_t* panels) {
  const WordTag du;
  constexpr int64_t kPiece = std::min<int64_t>(kPanelRows, hn::MaxLanes(du));
  HWY_ALIGN uint32_t buffer[hn::MaxLanes(du)];
  hn::Store(words, du, buffer);
  for (int64_t i = 0; i < float_lanes(); i += kPiece) {
    std::memcpy(panels + ((key + i) / kPanelRows * kBlockPairs + pair) * kPanelRows + (key + i) % kPanelRows,
                buffer + i, kPiece * sizeof(uint32_t));
  }
}

struct SoftmaxGradient {
  FloatVec p, d_s;
};

// p and d_s of a vector of scores. The query sees the first `lanes` of them, but not the first `hidden`; the others may
// hold anything.
HWY_INLINE SoftmaxGradient softmax_gradient(const PairBackwardScratch& s, int64_t at, FloatVec scale, FloatVec lse,
                                            FloatVec delta, int64_t hidden, int64_t lanes) {
  const auto p = exp(hn::MulSub(load(s.scores + at), scale, lse));
  const auto d_s = hn::Mul(p, hn::Sub(load(s.d_probabilities + at), delta));
  if (hidden <= 0) return {zero_beyond(p, lanes), zero_beyond(d_s, lanes)};
  const auto before = hn::FirstN(FloatTag(), static_cast<size_t>(hidden));
  return {hn::IfThenZeroElse(before, zero_beyond(p, lanes)), hn::IfThenZeroElse(before, zero_beyond(d_s, lanes))};
}

// Rounds p and d_s of a block to bf16, 0 outside of the visible keys and beyond `rows`. Stores p by keys, d_s by keys
// and by queries.
HWY_INLINE void softmax_backward_pairs(const PairBackwardScratch& s, const float* lse, const float* delta, int64_t rows,
                                       const BlockView& view, float scale) {
  const FloatTag df;
  const auto factor = hn::Set(df, scale);
  const auto end = [&](int64_t r) { return r >= rows ? 0 : view.end(r); };
  for (int64_t r = 0; r < kAttentionBlock; r += 2) {
    const auto row = [&](int64_t query, int64_t key) MANTISSA_VECTOR_LAMBDA {
      const int64_t lanes = std::clamp<int64_t>(end(query) - key, 0, float_lanes());
      if (lanes == 0) return SoftmaxGradient{hn::Zero(df), hn::Zero(df)};
      return softmax_gradient(s, query * kAttentionBlock + key, factor, hn::Set(df, lse[query]),
                              hn::Set(df, delta[query]), view.begin(query) - key, lanes);
    };
    for (int64_t key = 0; key < kAttentionBlock; key += float_lanes()) {
      const SoftmaxGradient even = row(r, key), odd = row(r + 1, key);
      store_pairs(rounded_pairs(even.p, odd.p), r / 2, key, s.p_panels);
      store_pairs(rounded_pairs(even.d_s, odd.d_s), r / 2, key, s.d_score_panels);
      store(even.d_s, s.d_scores + r * kAttentionBlock + key);
      store(odd.d_s, s.d_scores + (r + 1) * kAttentionBlock + key);
    }
  }
}

// Adds the gradients of one block of queries and the block of keys in scratch to d_queries and `sums`. lse and scratch
// hold query blocks from `origin` on.
HWY_INLINE void backward_pairs_block(const AttentionBlocks& shape, const PairBackwardScratch& s, const float* lse,
                                     int64_t origin, int64_t query_block, int64_t key_block, const KeySums& sums) {
  const BlockView view = shape.view(query_block, key_block);
  const int64_t dim = shape.head_dim, columns = panel_columns(dim), block = query_block - origin;
  const int64_t first = block * kAttentionBlock;
  PairProduct scores{.a = {reinterpret_cast<const uint32_t*>(s.queries + first * dim), dim / 2},
                     .b = {s.key_columns, kPanelColumns * dim / 2},
                     .rows = kAttentionBlock,
                     .columns = kAttentionBlock,
                     .depth = dim / 2,
                     .c = {s.scores, kAttentionBlock},
                     .store = TileStore::kFp32};
  const PairTriangle lower_result = view.diagonal ? PairTriangle::kLowerResult : PairTriangle::kNone;
  multiply_rows(scores, lower_result);
  scores.a.data = reinterpret_cast<const uint32_t*>(s.d_out + first * dim);
  scores.b.data = s.value_columns;
  scores.c.data = s.d_probabilities;
  multiply_rows(scores, lower_result);
  softmax_backward_pairs(s, lse + first, s.delta + first, shape.block_rows(query_block), view, shape.scale);

  PairProduct by_key{.a = {s.p_panels, kBlockPairs * kPanelRows},
                     .b = {s.d_out_pairs + block * kBlockPairs * columns, kBlockPairs * kPanelColumns},
                     .rows = kAttentionBlock,
                     .columns = columns,
                     .depth = kBlockPairs,
                     .c = {sums.d_values, columns},
                     .store = TileStore::kAddFp32};
  const PairTriangle upper_operand = view.diagonal ? PairTriangle::kUpperOperand : PairTriangle::kNone;
  multiply_panels(by_key, upper_operand);
  by_key.a.data = s.d_score_panels;
  by_key.b.data = s.query_pairs + block * kBlockPairs * columns;
  by_key.c.data = sums.d_keys;
  multiply_panels(by_key, upper_operand);
  multiply_rows({.a = {reinterpret_cast<const uint32_t*>(s.d_scores), kBlockPairs},
                 .b = {s.key_pairs, kBlockPairs * kPanelColumns},
                 .rows = kAttentionBlock,
                 .columns = columns,
                 .depth = kBlockPairs,
                 .c = {s.d_queries + first * columns, columns},
                 .store = TileStore::kAddFp32},
                view.diagonal ? PairTriangle::kLowerOperand : PairTriangle::kNone);
}

// Adds the run to its sums and writes its d_q.
void backward_pairs_run(const AttentionBackwardArgs& args, const AttentionSegments& shape, const PairBackwardScratch& s,
                        const SegmentRun& run) {
  const int64_t b = run.b, head = run.head, kv_head = head / shape.group(), dim = shape.head_dim;
  const int64_t columns = panel_columns(dim), origin = shape.segment_begin(run.begin);
  const int64_t blocks = shape.segment_begin(run.end) - origin;
  const int64_t first = shape.first_query(run.begin), rows = shape.first_query(run.end) - first;
  const BFloat16* qkv = args.qkv.data<BFloat16>();
  const BFloat16* out = args.out.data<BFloat16>() + shape.out_offset(b, head, first);
  const HeadRows queries{qkv + shape.query_offset(b, head, first), shape.qkv_row(), rows, dim};
  const HeadRows d_out{args.d_out.data<BFloat16>() + shape.out_offset(b, head, first), shape.out_row(), rows, dim};
  const HeadRows keys{qkv + shape.key_offset(b, kv_head, 0), shape.qkv_row(), shape.sequence_length, dim};
  const HeadRows values{qkv + shape.value_offset(b, kv_head, 0), shape.qkv_row(), shape.sequence_length, dim};
  for (int64_t i = 0; i < blocks; ++i) {
    copy_rows(queries, i, s.queries + i * kAttentionBlock * dim);
    copy_rows(d_out, i, s.d_out + i * kAttentionBlock * dim);
    pack_row_pairs(queries, i, s.query_pairs + i * kBlockPairs * columns);
    pack_row_pairs(d_out, i, s.d_out_pairs + i * kBlockPairs * columns);
  }
  for (int64_t t = 0; t < rows; ++t) {
    const BFloat16 *a = out + t * shape.out_row(), *d = d_out.first + t * d_out.stride;
    s.delta[t] = sum_vectors(dim, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      return hn::Mul(load(a + i, count), load(d + i, count));
    });
  }
  std::fill_n(s.d_queries, blocks * kAttentionBlock * columns, 0.0f);
  const float* lse = args.lse.data<float>() + shape.lse_offset(b, head, first);
  const int64_t key_blocks_begin = shape.key_blocks_begin(shape.segment_begin(run.begin));
  for (int64_t j = key_blocks_begin; j < shape.segment_key_blocks(run.end - 1); ++j) {
    pack_rows_as_columns(keys, j, s.key_columns);
    pack_rows_as_columns(values, j, s.value_columns);
    pack_row_pairs(keys, j, s.key_pairs);
    add_segments(shape, run, j, columns, [&](int64_t begin, int64_t end, const KeySums& sums) MANTISSA_VECTOR_LAMBDA {
      for (int64_t i = begin; i < end; ++i) backward_pairs_block(shape, s, lse, origin, i, j, sums);
    });
  }
  write_block(s.d_queries, columns, rows, dim, shape.scale,
              args.d_qkv.data<BFloat16>() + shape.query_offset(b, head, first), shape.qkv_row());
}

struct Pairs {
  using T = BFloat16;

  static int64_t columns(int64_t head_dim) { return panel_columns(head_dim); }
  static float key_scale(const AttentionShape& shape) { return shape.scale; }
  static PairBackwardScratch scratch(const AttentionSegments& shape, int64_t begin, int64_t end, int64_t keys) {
    return thread_scratch<PairBackwardScratch>(shape.head_dim, shape.segment_begin(end) - shape.segment_begin(begin),
                                               divide_up(keys, kAttentionBlock));
  }
  static constexpr auto run = backward_pairs_run;
};

AttentionBackwardKernels pair_kernels(int64_t head_dim) { return BackwardKernels<Pairs>::all(head_dim); }

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(attend_pairs_run);
HWY_EXPORT(pair_kernels);

bool attends_in_pairs(DType dtype, int64_t head_dim) {
  // Tests limit Highway to smaller instruction sets. They must then get the path of a processor that has no more.
  return dtype == DType::kBF16 && head_dim % 2 == 0 && (hwy::SupportedTargets() & HWY_AVX3) != 0 &&
         preferred_bf16_gemm() == Bf16Gemm::kDotProducts;
}

void attend_pairs(const AttentionForwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t head,
                  int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(attend_pairs_run)(args, shape, b, head, begin, end);
}

namespace {

template <bool kPanels>
void multiply(const PairProduct& p, PairTriangle triangle) {
  const MicroKernel& kernel = bf16_micro_kernel();
  const MicroKernel::Run run = (kPanels ? kernel.from_panel : kernel.from_rows)[kPanelColumns / kernel.lanes - 1];
  MicroTile tile{.a_stride = p.a.stride, .depth = p.depth, .c_stride = p.c.stride, .store = p.store};
  for (int64_t row = 0; row < p.rows; row += kPanelRows) {
    int64_t begin = 0, columns = p.columns;
    if (triangle == PairTriangle::kLowerResult) columns = std::min(columns, row + kPanelRows);
    if (triangle == PairTriangle::kLowerOperand) tile.depth = std::min(p.depth, (row + kPanelRows) / 2);
    if (triangle == PairTriangle::kUpperOperand) {
      begin = std::min(row / 2, p.depth);
      tile.depth = p.depth - begin;
    }
    tile.a = kPanels ? p.a.data + row / kPanelRows * p.a.stride + begin * kPanelRows : p.a.data + row * p.a.stride;
    for (int64_t column = 0; column < columns; column += kPanelColumns) {
      tile.b = p.b.data + column / kPanelColumns * p.b.stride + begin * kPanelColumns;
      tile.c = p.c.data + row * p.c.stride + column;
      run(tile);
    }
  }
}

}  // namespace

void multiply_rows(const PairProduct& product, PairTriangle triangle) { multiply<false>(product, triangle); }
void multiply_panels(const PairProduct& product, PairTriangle triangle) { multiply<true>(product, triangle); }

AttentionBackwardKernels backward_pairs_kernels(int64_t head_dim) {
  return HWY_DYNAMIC_DISPATCH(pair_kernels)(head_dim);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
