// Codes of a WarpTile, eight bits each, as they lie and turned over. Lanes have four neighbouring codes of a row, and,
// of four rows, four of a column: both are words. Turned over, columns go through shared memory.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/kernels/quantize/args.h"
#include "core/kernels/quantize/quantize_tile_cuda.h"

namespace mantissa::cuda {

constexpr int kCodesOfWord = 4;

// Where a kernel stores them.
struct CodeMatrices {
  uint8_t* codes;       // (rows, columns); null: not wanted
  uint8_t* transposed;  // (columns, rows); likewise
  int64_t rows, columns;
};

// extents: of src.
inline CodeMatrices code_matrices(const QuantizeArgs& args, Rows extents) {
  return {.codes = args.codes.defined() ? args.codes.data<uint8_t>() : nullptr,
          .transposed = args.transposed_codes.defined() ? args.transposed_codes.data<uint8_t>() : nullptr,
          .rows = extents.rows,
          .columns = extents.columns};
}

// The first `count` bytes of a word, or, where that is 4, the word at once: then the address is a multiple of 4.
template <bool kWhole>
__device__ __forceinline__ void store_codes(uint8_t* to, uint32_t word, int64_t count) {
  if constexpr (kWhole) {
    *reinterpret_cast<uint32_t*>(to) = word;
  } else {
    for (int i = 0; i < kCodesOfWord && i < count; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

// Whether the rows of a matrix of codes, if there is one, can be stored in words.
inline bool takes_words(const Tensor& codes, int64_t row_length) {
  return !codes.defined() ||
         (reinterpret_cast<uintptr_t>(codes.raw()) % sizeof(uint32_t) == 0 && row_length % kCodesOfWord == 0);
}

// A tile turned over: its columns' words in shared memory.
template <int kRows>
class TurnedCodes {
 public:
  static constexpr int kWordsOfColumn = kTileWarps * kRows / kCodesOfWord;
  static constexpr size_t kWords = kLaneColumns * (kLanes * (kWordsOfColumn + 1) + kWordsOfColumn % kLanes);

  __device__ __forceinline__ explicit TurnedCodes(uint32_t* words) : words_(words) {}

  // Column k of the calling lane, rows r ... r + 3 of its warp.
  __device__ __forceinline__ void put(int k, int r, uint32_t word) const {
    const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
    words_[place(k, lane) + (warp * kRows + r) / kCodesOfWord] = word;
  }

  // By all threads of the block, some barrier after their put(). (row, column): where the tile begins.
  template <bool kWhole>
  __device__ __forceinline__ void store_to(const CodeMatrices& to, int64_t row, int64_t column) const {
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < kTileColumns * kWordsOfColumn; i += kTileThreads) {
      const int of_tile = i / kWordsOfColumn, word = i % kWordsOfColumn;
      const int64_t c = column + of_tile, r = row + word * kCodesOfWord;
      if (c >= to.columns || r >= to.rows) continue;
      const uint32_t codes = words_[place(of_tile % kLaneColumns, of_tile / kLaneColumns) + word];
      store_codes<kWhole>(to.transposed + c * to.rows + r, codes, to.rows - r);
    }
  }

 private:
  // Of the first word of a lane's column k. Lanes write to different banks, and what a warp reads lies on different
  // ones too: a column, or two neighbours, of which the first is even.
  __device__ __forceinline__ static int place(int k, int lane) {
    return k * (kLanes * (kWordsOfColumn + 1) + kWordsOfColumn % kLanes) + lane * (kWordsOfColumn + 1);
  }

  uint32_t* words_;
};

// Stores the tile's rows of codes, where to.codes is given, and puts its columns into `turned`: a TurnedCodes<kRows>,
// or nullptr. code_at(r, k): the code of values[r][k].
template <bool kWhole, int kRows, int Width, typename Turned, typename CodeAt>
__device__ __forceinline__ void encode_tile(const WarpTile<kRows, Width>& tile, const CodeMatrices& to,
                                            const Turned& turned, const CodeAt& code_at) {
  uint32_t columns[kLaneColumns] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    uint32_t row = 0;
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) {
      const uint32_t code = code_at(r, k);
      row |= code << (8 * k);
      columns[k] |= code << (8 * (r % kCodesOfWord));
    }
    if (to.codes != nullptr && tile.row + r < to.rows && tile.column < to.columns) {
      store_codes<kWhole>(to.codes + (tile.row + r) * to.columns + tile.column, row, to.columns - tile.column);
    }
    if (r % kCodesOfWord != kCodesOfWord - 1) continue;
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) {
      if constexpr (!std::is_null_pointer_v<Turned>) turned.put(k, r - (kCodesOfWord - 1), columns[k]);
      columns[k] = 0;
    }
  }
}

}  // namespace mantissa::cuda
