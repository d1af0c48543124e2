// Attention in bf16 on processors with dot products of bf16 pairs, at twice the speed of fp32. Queries, keys, values
// and d_out are multiplied as they are. Probabilities and d_scores are rounded to bf16 before the second products, as
// on GPUs. All sums, the softmax and its derivative stay in fp32. Subnormal operands count as 0.
#pragma once

#include <algorithm>

#include "core/base/round_up.h"
#include "core/cpu/memory.h"
#include "core/kernels/attention/segments_cpu.h"
#include "core/kernels/gemm/micro_cpu.h"
#include "core/tensor/half.h"

namespace mantissa::cpu {

// Whether to use these kernels: for bf16 and an even head_dim, if Bf16Gemm::kDotProducts is preferred.
bool attends_in_pairs(DType dtype, int64_t head_dim);

// Query blocks [begin, end) of one head.
void attend_pairs(const AttentionForwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t head,
                  int64_t begin, int64_t end);

AttentionBackwardKernels backward_pairs_kernels(int64_t head_dim);

// ---- Operands packed for the micro-kernel (core/kernels/gemm/micro_cpu.h)

// Panels of two vectors: two panels make a block of 64, and 16 sums are enough to keep the dot-product units busy.
constexpr int64_t kPanelColumns = 32;
constexpr int64_t kPanelRows = 8;  // of the micro-kernel
constexpr int64_t kBlockPairs = kAttentionBlock / 2;

// The rows of one head in a tensor of bf16.
struct HeadRows {
  const BFloat16* first;
  int64_t stride, rows, dim;

  GemmOperand operand(bool lines_inner) const {
    return {.data = reinterpret_cast<const std::byte*>(first),
            .columns = stride,
            .dtype = DType::kBF16,
            .lines_inner = lines_inner,
            .lines = lines_inner ? dim : rows,
            .depth = lines_inner ? rows : dim};
  }
};

// Columns of a (rows, dim) matrix in whole panels.
constexpr int64_t panel_columns(int64_t dim) { return round_up(dim, kPanelColumns); }

// For products that sum over dim: packs the block's rows as columns of b. (dim / 2, 64) in two panels.
inline void pack_rows_as_columns(const HeadRows& head, int64_t block, uint32_t* panels) {
  pack_panels(head.operand(false), {.line = block * kAttentionBlock,
                                    .width = kPanelColumns,
                                    .panels = kAttentionBlock / kPanelColumns,
                                    .panel_stride = kPanelColumns * head.dim / 2,
                                    .k = 0,
                                    .depth = head.dim,
                                    .word = GemmWord::kBf16Pair,
                                    .panel = panels});
}

// For products that sum over the block's rows: packs pairs of rows as rows of b. (32, panel_columns(dim)) in panels.
// Pairs beyond the rows are 0.
inline void pack_row_pairs(const HeadRows& head, int64_t block, uint32_t* panels) {
  const int64_t first = block * kAttentionBlock, rows = std::min(kAttentionBlock, head.rows - first);
  const int64_t width = panel_columns(head.dim);
  if (rows < kAttentionBlock) std::fill_n(panels, kBlockPairs * width, 0u);
  pack_panels(head.operand(true), {.line = 0,
                                   .width = kPanelColumns,
                                   .panels = width / kPanelColumns,
                                   .panel_stride = kPanelColumns * kBlockPairs,
                                   .k = first,
                                   .depth = rows,
                                   .word = GemmWord::kBf16Pair,
                                   .panel = panels});
}

// Copies the block's rows; rows beyond the head's are 0. (64, dim).
inline void copy_rows(const HeadRows& head, int64_t block, BFloat16* rows) {
  const int64_t first = block * kAttentionBlock, count = std::min(kAttentionBlock, head.rows - first);
  for (int64_t r = 0; r < count; ++r)
    std::copy_n(head.first + (first + r) * head.stride, head.dim, rows + r * head.dim);
  std::fill(rows + count * head.dim, rows + kAttentionBlock * head.dim, BFloat16{});
}

// c (rows, columns) = a b or c += a b, in tiles of (kPanelRows, kPanelColumns).
struct PairProduct {
  struct Words {
    const uint32_t* data;
    int64_t stride;
  };
  struct Result {
    float* data;
    int64_t stride;
  };

  Words a;                       // rows, or panels of kPanelRows
  Words b;                       // panels
  int64_t rows, columns, depth;  // depth in words
  Result c;
  TileStore store;
};

// The part of a product on the causal diagonal that is needed.
enum class PairTriangle : uint8_t {
  kNone,
  kLowerResult,   // columns up to the row's index
  kLowerOperand,  // words of a with elements up to the row's index
  kUpperOperand,  // words of a from the row's index on; a in panels
};

void multiply_rows(const PairProduct& product, PairTriangle triangle);
void multiply_panels(const PairProduct& product, PairTriangle triangle);

}  // namespace mantissa::cpu
