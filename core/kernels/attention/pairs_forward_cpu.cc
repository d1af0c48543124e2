// The forward pass on pairs of bf16, and products of packed pairs.
#include "core/kernels/attention/pairs_cpu.h"
#include "core/kernels/gemm/gemm_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention/pairs_forward_cpu.cc"
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
    multiply_rows({.a = reinterpret_cast<const uint32_t*>(s.queries),
                   .a_stride = dim / 2,
                   .b = s.keys + j * kAttentionBlock * dim / 2,
                   .b_stride = kPanelColumns * dim / 2,
                   .rows = whole_rows,
                   .columns = kAttentionBlock,
                   .depth = dim / 2,
                   .c = s.softmax.scores,
                   .c_stride = kAttentionBlock,
                   .store = TileStore::kFp32},
                  view.diagonal ? PairTriangle::kLowerResult : PairTriangle::kNone);
    softmax_block(s.softmax, rows, view, shape.scale, columns);
    for (int64_t i = 0; i < rows * kAttentionBlock; i += float_lanes()) {
      store(load(s.softmax.scores + i), s.probabilities + i);
    }
    multiply_rows({.a = reinterpret_cast<const uint32_t*>(s.probabilities),
                   .a_stride = kBlockPairs,
                   .b = s.values + j * kBlockPairs * columns,
                   .b_stride = kBlockPairs * kPanelColumns,
                   .rows = whole_rows,
                   .columns = columns,
                   .depth = kBlockPairs,
                   .c = s.softmax.sums,
                   .c_stride = columns,
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

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(attend_pairs_run);

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
  MicroTile tile{.a = nullptr,
                 .a_stride = p.a_stride,
                 .b = nullptr,
                 .depth = p.depth,
                 .before = nullptr,
                 .bias = nullptr,
                 .c = nullptr,
                 .c_stride = p.c_stride,
                 .store = p.store};
  for (int64_t row = 0; row < p.rows; row += kPanelRows) {
    int64_t begin = 0, columns = p.columns;
    if (triangle == PairTriangle::kLowerResult) columns = std::min(columns, row + kPanelRows);
    if (triangle == PairTriangle::kLowerOperand) tile.depth = std::min(p.depth, (row + kPanelRows) / 2);
    if (triangle == PairTriangle::kUpperOperand) {
      begin = std::min(row / 2, p.depth);
      tile.depth = p.depth - begin;
    }
    tile.a = kPanels ? p.a + row / kPanelRows * p.a_stride + begin * kPanelRows : p.a + row * p.a_stride;
    for (int64_t column = 0; column < columns; column += kPanelColumns) {
      tile.b = p.b + column / kPanelColumns * p.b_stride + begin * kPanelColumns;
      tile.c = p.c + row * p.c_stride + column;
      run(tile);
    }
  }
}

}  // namespace

void multiply_rows(const PairProduct& product, PairTriangle triangle) { multiply<false>(product, triangle); }
void multiply_panels(const PairProduct& product, PairTriangle triangle) { multiply<true>(product, triangle); }

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
