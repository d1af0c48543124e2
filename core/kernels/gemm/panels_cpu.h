// Operands of a matrix multiplication, packed for the micro-kernels.
//
// op(a) (M, K) is cut into panels of a few rows, op(b) (K, N) into panels of a few columns. Both are called `lines`
// here. Within a panel, K is outermost: words that a micro-kernel reads together are adjacent, and it reads memory in
// order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernels/gemm/micro_cpu.h"
#include "core/tensor/dtype.h"

namespace mantissa::cpu {

// An operand as stored. Element (line, k) is at data + (line * columns + k) elements, or with `lines_inner` at data +
// (k * columns + line).
struct GemmOperand {
  const std::byte* data;
  int64_t columns;  // in a stored row
  DType dtype;
  bool lines_inner;
  int64_t lines, depth;

  const std::byte* at(int64_t line, int64_t k) const {
    return data + (lines_inner ? k * columns + line : line * columns + k) * static_cast<int64_t>(size_bytes(dtype));
  }
  // Whether rows of the operand can be read word by word as stored.
  bool has_rows_of(GemmWord word) const {
    if (lines_inner) return false;
    return word == GemmWord::kFp32 ? dtype == DType::kF32 : dtype == DType::kBF16 && depth % 2 == 0;
  }
};

// Elements of K in a word, and words in `depth` elements. An odd depth's last pair is padded with 0.
constexpr int64_t elements_in(GemmWord word) { return word == GemmWord::kBf16Pair ? 2 : 1; }
constexpr int64_t words_in(int64_t depth, GemmWord word) { return (depth + elements_in(word) - 1) / elements_in(word); }

// Packs K [k, k + depth) of `panels` panels of `width` lines each, from `line` on. A panel is (words_in(depth), width);
// the next one starts `panel_stride` words after it. Lines beyond the operand's are 0. Panels are 64-byte aligned. A
// width is 4, 8 or a multiple of the vectors' lanes, and at most kMaxPanelLines. Pairs need a bf16 operand and an even
// k.
//
// sums (panels * width): the fp32 sum of each line's packed elements, in an order that depends on depth only; null for
// none. Only with `lines_inner`.
struct PackArgs {
  int64_t line, width, panels, panel_stride, k, depth;
  GemmWord word;
  uint32_t* panel;
  float* sums = nullptr;
};
constexpr int64_t kMaxPanelLines = 48;
void pack_panels(const GemmOperand& operand, const PackArgs& args);

// Prefetches into the second-level cache part `part` of `parts` of the memory that pack_panels() would read.
void prefetch_panels(const GemmOperand& operand, const PackArgs& args, int64_t part, int64_t parts);

}  // namespace mantissa::cpu
