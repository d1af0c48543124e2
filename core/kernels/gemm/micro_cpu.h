// The innermost loops of matrix multiplication: a small tile of c stays in registers while both operands stream
// through. Operands are read in words: one fp32 value or, for products of bf16 pairs, two bf16 values consecutive in K.
#pragma once

#include <cstdint>

namespace mantissa::cpu {

enum class GemmWord : uint8_t { kFp32, kBf16Pair };

// How a tile is stored.
enum class TileStore : uint8_t {
  kFp32,     // c = sum + bias
  kAddFp32,  // c += sum
  kBf16,     // c = sum + bias, rounded to bf16; subnormal results count as 0
};

// sum (rows, columns) = before + the products of `depth` words of K of a and b. Each element is one chain of
// multiply-adds in the order of K.
struct MicroTile {
  const uint32_t* a;    // rows at distance `a_stride` words, or a packed panel (depth, rows)
  int64_t a_stride;     // between rows; unused for a panel
  const uint32_t* b;    // a packed panel (depth, columns), 64-byte aligned
  int64_t depth;        // words
  const float* before;  // (rows, columns) dense: the sum over earlier K; null for none
  const float* bias;    // (columns); null for none
  void* c;              // rows at distance `c_stride` elements
  int64_t c_stride;
  TileStore store;
};

// GCC's builtin emits a read prefetch unless the target is known to have PREFETCHW. Every x86-64 processor accepts that
// instruction, older ones as a no-op.
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

}  // namespace mantissa::cpu
