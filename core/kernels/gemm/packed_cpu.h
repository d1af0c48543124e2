// Matrix multiplication with packed operands and our own micro-kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/round_up.h"
#include "core/cpu/memory.h"
#include "core/kernels/activation/args.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/micro_cpu.h"

namespace mantissa::cpu {

// Implements GemmArgs. Kernels for bf16 pairs need bf16 operands. Other dtypes are widened to fp32 (exact) when packed.
void gemm_packed(const GemmArgs& args, const MicroKernel& kernel);

// Keeps the panels of a matrix for gemm_packed() between products. A linear layer's weight is packed twice, along its
// rows for the forward pass and along its columns for the backward pass.
class PackedOperand final : public OperandCache {
 public:
  void forget() override;
  void plan(const GemmArgs& args) override;
  size_t size_bytes() const override;

  // Memory for the panels of `operand`, and whether they are already packed. If not, the caller packs them now.
  struct Panels {
    uint32_t* data;
    bool packed;
  };
  Panels panels(const GemmOperand& operand, GemmWord word, int64_t words);

 private:
  struct Form {
    Scratch memory;
    int64_t words = 0;
    GemmWord word = GemmWord::kFp32;
    bool packed = false;
  };
  Form forms_[2];  // by GemmOperand::lines_inner
};

// ---- How a product is partitioned. Every element of c is one chain of multiply-adds in the order of K. So results
// depend neither on the partition nor on the number of threads, and the partition may suit the threads.

// A range cut into parts of equal size; the last may be smaller.
struct Cut {
  int64_t extent = 0, part = 0;

  int64_t count() const { return (extent + part - 1) / part; }
  int64_t begin(int64_t index) const { return index * part; }
  int64_t size(int64_t index) const { return part < extent - begin(index) ? part : extent - begin(index); }
};

// Cuts `extent` into the fewest parts of at most `most`, about equal, in multiples of `multiple` (which divides
// `most`).
Cut cut_evenly(int64_t extent, int64_t most, int64_t multiple);

// Tasks are blocks of c, made of whole tiles of the micro-kernel.
struct GemmTasks {
  // With this many tasks, threads wait for the last ones at most a few per cent of the time.
  static constexpr int64_t kPerThread = 8;

  Cut rows, columns;

  int64_t count() const { return rows.count() * columns.count(); }
};

// A block (m, n) of c to be partitioned for `threads` threads, in tiles of (tile_rows, tile_columns).
struct GemmTaskShape {
  int64_t m, n, tile_rows, tile_columns, threads;
  bool packs_rows;  // tasks pack the rows of a that they read: wide tasks do so less often
};
// Tasks whose operands stay in the second-level cache, but several for each thread.
GemmTasks plan_tasks(const GemmTaskShape& shape);

// ---- A product by tasks

// One product by the micro-kernels: operands, result and partition. K is counted in words.
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

// Words of K that a task processes at a time. A panel of b (48 columns) then takes 192 KiB.
constexpr int64_t kStretchWords = 1024;

// Adds the products of a block of the operands to a part of c (whole tiles of the micro-kernel), on the calling thread.
// After the last block of K the part of c is final, with bias and activation. With job.own_columns the block is all of
// b.
void run_gemm_task(const GemmJob& job, const GemmBlock& block, const MatrixPart& part);

// A bias (n) as fp32, after rounding to c's dtype: in place, or converted into `scratch`. nullptr if it is undefined.
const float* bias_as_fp32(const Tensor& bias, DType c_dtype, Scratch& scratch);

}  // namespace mantissa::cpu
