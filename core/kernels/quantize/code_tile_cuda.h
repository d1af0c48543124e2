// Codes of a WarpTile, eight bits each, as they lie and transposed. A lane has four neighbouring codes of each row, and
// four of each column in every four rows: both are words. Transposed columns go through shared memory.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/kernels/quantize/tile_cuda.h"

namespace mantissa::cuda {

constexpr int kCodesOfWord = 4;

// Results of a kernel.
struct CodeMatrices {
  uint8_t* codes;       // (rows, columns); null: not wanted
  uint8_t* transposed;  // (columns, rows); null: not wanted
  int64_t rows, columns;
};

// extents: those of src.
inline CodeMatrices code_matrices(const QuantizeArgs& args, Rows extents) {
  return {data_or_null<uint8_t>(args.codes), data_or_null<uint8_t>(args.transposed_codes), extents.rows,
          extents.columns};
}

// Stores the first `count` bytes of a word. kWhole: the word at once, at a multiple of 4 bytes.
template <bool kWhole>
__device__ __forceinline__ void store_codes(uint8_t* to, uint32_t word, int64_t count) {
  if constexpr (kWhole) {
    *reinterpret_cast<uint32_t*>(to) = word;
  } else {
    for (int i = 0; i < kCodesOfWord && i < count; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

// Whether the rows of an optional matrix of codes can be stored in words.
inline bool takes_words(const Tensor& codes, int64_t row_length) {
  return !codes.defined() ||
         (reinterpret_cast<uintptr_t>(codes.raw()) % sizeof(uint32_t) == 0 && row_length % kCodesOfWord == 0);
}

// A transposed tile: its columns' words in shared memory.
template <int kRows>
class TransposedCodes {
 public:
  static constexpr int kWordsOfColumn = kTileWarps * kRows / kCodesOfWord;
  static constexpr size_t kWords = kLaneColumns * (kLanes * (kWordsOfColumn + 1) + kWordsOfColumn % kLanes);

  __device__ __forceinline__ explicit TransposedCodes(uint32_t* words) : words_(words) {}

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
  // The first word of a lane's column k. A warp's lanes write to different banks, and read from different banks: a
  // column, or columns k and k + 1 with even k.
  __device__ __forceinline__ static int place(int k, int lane) {
    return k * (kLanes * (kWordsOfColumn + 1) + kWordsOfColumn % kLanes) + lane * (kWordsOfColumn + 1);
  }

  uint32_t* words_;
};

// Stores the tile's rows of codes in to.codes, if given, and its columns in `transposed`: a TransposedCodes<kRows>, or
// nullptr. code_at(r, k): the code of values[r][k].
template <bool kWhole, int kRows, int Width, typename Transposed, typename CodeAt>
__device__ __forceinline__ void encode_tile(const WarpTile<kRows, Width>& tile, const CodeMatrices& to,
                                            const Transposed& transposed, const CodeAt& code_at) {
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
      if constexpr (!std::is_null_pointer_v<Transposed>) transposed.put(k, r - (kCodesOfWord - 1), columns[k]);
      columns[k] = 0;
    }
  }
}

}  // namespace mantissa::cuda
