// One matrix multiplication by the micro-kernels: operands, result and partition. K is counted in words.
#pragma once

#include <algorithm>

#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/micro_cpu.h"
#include "core/kernels/gemm/panels_cpu.h"
#include "core/kernels/gemm/plan_cpu.h"

namespace mantissa::cpu {

struct GemmJob {
  const GemmArgs& args;
  const MicroKernel& kernel;
  GemmExtents extents;
  GemmOperand a, b;
  bool packs_rows;        // rows of a cannot be read as stored: tasks pack them
  bool own_columns;       // tasks also pack the columns of b that they read
  const Tensor& product;  // destination of the product with its bias
  int64_t c_element_bytes;
  TileStore store;
  bool direct;                   // the micro-kernel stores tiles itself; it applies no factors
  float factors[2];              // inverses of GemmArgs::a_scale and b_scale
  const float* bias = nullptr;   // (N)
  uint32_t* packed_b = nullptr;  // panels of a block; null if tasks pack their own
  float* sums = nullptr;         // partial sums of a block of columns' tiles, if K has several blocks

  int64_t depth_words() const { return words_in(extents.k, kernel.word); }
  int64_t elements(int64_t words) const { return words * elements_in(kernel.word); }
  // First row of a that is read from a panel: 0 if all rows are packed, else that of the incomplete tile.
  int64_t first_packed_row() const { return packs_rows ? 0 : extents.m / kernel.rows * kernel.rows; }
  // The columns of c from `column` on, rounded up to whole vectors, at most one tile.
  int64_t panel_width(int64_t column) const {
    return std::min(kernel.columns(), round_up(extents.n - column, kernel.lanes));
  }
  // A panel of b: the columns from `column` on, words [word, word + words) of K.
  PackArgs panel_of_b(int64_t column, int64_t word, int64_t words, uint32_t* panel) const {
    const int64_t width = panel_width(column);
    return {.line = column,
            .width = width,
            .panels = 1,
            .panel_stride = width * words,
            .k = elements(word),
            .depth = std::min(elements(words), extents.k - elements(word)),
            .word = kernel.word,
            .panel = panel};
  }
};

// The part of the operands that is packed at a time. K is counted in words.
struct GemmBlock {
  int64_t column, columns, word, words;
  bool first, last;  // whether it is the first or last block of K
};

// A part of c.
struct GemmPart {
  int64_t row, row_end, column, column_end;
};

}  // namespace mantissa::cpu
