// The innermost loops of matrix multiplication: a small tile of c stays in registers while both operands stream
// through. Operands are read in words: one fp32 value or, for products of bf16 pairs, two bf16 values consecutive in K.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/tensor/dtype.h"

namespace mantissa::cpu {

enum class GemmWord : uint8_t { kFp32, kBf16Pair };

// Elements of K in a word, and words in `depth` elements. An odd depth's last pair is padded with 0.
constexpr int64_t elements_in(GemmWord word) { return word == GemmWord::kBf16Pair ? 2 : 1; }
constexpr int64_t words_in(int64_t depth, GemmWord word) { return (depth + elements_in(word) - 1) / elements_in(word); }

// How a tile is stored.
enum class TileStore : uint8_t {
  kFp32,     // c = sum + bias
  kAddFp32,  // c += sum
  kBf16,     // c = sum + bias, rounded to bf16; subnormal results count as 0
};

// sum (rows, columns) = before + the products of `depth` words of K of a and b. Each element is one chain of
// multiply-adds in the order of K.
struct MicroTile {
  const uint32_t* a = nullptr;    // rows at distance `a_stride` words, or a packed panel (depth, rows)
  int64_t a_stride = 0;           // between rows; unused for a panel
  const uint32_t* b = nullptr;    // a packed panel (depth, columns), 64-byte aligned
  int64_t depth = 0;              // words
  const float* before = nullptr;  // (rows, columns) dense: the sum over earlier K; null for none
  const float* bias = nullptr;    // (columns); null for none
  void* c = nullptr;              // rows at distance `c_stride` elements
  int64_t c_stride = 0;
  TileStore store = TileStore::kFp32;
};

// GCC's builtin emits a read prefetch unless the target is known to have PREFETCHW. Every x86-64 processor accepts
// PREFETCHW, older ones as a no-op.
inline void prefetch_for_writing(const char* address) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*address));
#else
  __builtin_prefetch(address, 1);
#endif
}

// Prefetches the destination of a tile while its products are computed. The stores of a tile touch as many cache lines
// as it has vectors, and would otherwise wait for them one after the other.
inline void prefetch_c(const MicroTile& tile, int rows, int64_t columns) {
  constexpr int64_t kLineBytes = 64;
  const int64_t element_bytes = tile.store == TileStore::kBf16 ? 2 : 4;
  const char* row = static_cast<const char*>(tile.c);
  for (int i = 0; i < rows; ++i, row += tile.c_stride * element_bytes) {
    for (int64_t byte = 0; byte < columns * element_bytes; byte += kLineBytes) prefetch_for_writing(row + byte);
  }
}

struct MicroKernel {
  static constexpr int kMaxVectors = 3;
  // Upper bound on the elements of a tile, over all kernels.
  static constexpr int64_t kMaxElements = 8 * 48;

  using Run = void (*)(const MicroTile& tile);

  GemmWord word;
  bool stores_bf16;
  int64_t rows, lanes;         // a tile has 1 to kMaxVectors vectors of columns
  Run from_rows[kMaxVectors];  // reads a as stored; index: number of vectors - 1
  Run from_panel[kMaxVectors];

  int64_t columns() const { return kMaxVectors * lanes; }
};

// For fp32 words, on the widest vectors of this CPU.
const MicroKernel& fp32_micro_kernel();

// For pairs of bf16. Requires AVX512_BF16. Subnormal inputs count as 0.
bool has_bf16_micro_kernel();
const MicroKernel& bf16_micro_kernel();

// ---- Packed operands (panels_cpu.cc)
//
// op(a) (M, K) is cut into panels of a few rows, op(b) (K, N) into panels of a few columns. Both are called `lines`
// here. Within a panel, K is outermost: words that a micro-kernel reads together are adjacent, and it reads memory in
// order.

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

// Packs K [k, k + depth) of `panels` panels of `width` lines each, from `line` on. A panel is (words_in(depth), width);
// the next one starts `panel_stride` words after it. Lines beyond the operand's are 0. Panels are 64-byte aligned. A
// width is 4, 8 or a multiple of the vectors' lanes, and at most kMaxPanelLines. Pairs need a bf16 operand and an even
// k.
//
// sums (panels * width): the fp32 sum of each line's packed elements, in an order that depends on depth only; may be
// null. Only with `lines_inner`.
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
