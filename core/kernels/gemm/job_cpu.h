// One matrix multiplication by the micro-kernels: its operands, its result, and how they are cut. K is counted in
// words.
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
  bool packs_rows;        // rows of a cannot be read as they lie: tasks pack theirs
  bool own_columns;       // tasks pack the columns of b that they read as well
  const Tensor& product;  // where the product with its bias goes
  int64_t c_element_bytes;
  TileStore store;
  bool direct;                   // tiles are stored by the micro-kernel, which has no factors
  float factors[2];              // of the product: the inverses of GemmArgs::a_scale and b_scale
  const float* bias = nullptr;   // (N)
  uint32_t* packed_b = nullptr;  // panels of a block, unless tasks pack their own
  float* sums = nullptr;         // of the tiles of a block of columns, where K is more than one block

  int64_t depth_words() const { return words_in(extents.k, kernel.word); }
  int64_t elements(int64_t words) const { return words * elements_in(kernel.word); }
  // Of the first row that is read from a panel: all of them, or those of an incomplete tile.
  int64_t first_packed_row() const { return packs_rows ? 0 : extents.m / kernel.rows * kernel.rows; }
  // Whole vectors that hold the columns of c from `column` on, at most those of a tile.
  int64_t panel_width(int64_t column) const {
    return std::min(kernel.columns(), round_up(extents.n - column, kernel.lanes));
  }
  // A panel of b: the columns from `column` on, and `words` of K from `word` on.
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

// The part of the operands that is packed at a time.
struct GemmBlock {
  int64_t column, columns, word, words;
  bool first, last;  // of K
};

// A part of c.
struct GemmPart {
  int64_t row, row_end, column, column_end;
};

}  // namespace mantissa::cpu
