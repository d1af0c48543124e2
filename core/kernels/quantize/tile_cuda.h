// A tile of a matrix on its way to a low-precision format, in the registers of a block of eight warps: each warp has
// some of the rows, each lane four neighbouring columns of 128. The matrix is read once and written once.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/cuda/device/device.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/narrow_format.h"
#include "core/quant/scales.h"

namespace mantissa::cuda {

constexpr int non_finite(float value) { return is_finite_magnitude(magnitude_bits(value)) ? 0 : 1; }

// Adds a block's amax and its count of non-finite elements to a record. Integer atomics make the result independent of
// the order of blocks. amax: the calling thread's, as magnitude_bits(). count(): the number of its non-finite elements;
// called only if the block has any. All threads of a one-dimensional block must call. scratch: shared memory, one word
// per warp.
template <typename Count>
__device__ __forceinline__ void add_to_record(QuantizeRecord* record, uint32_t amax, const Count& count,
                                              uint32_t* scratch) {
  const uint32_t largest = block_reduce(amax, MaxBits(), scratch);
  if (!is_finite_magnitude(largest)) {
    const uint32_t bad = block_reduce(static_cast<uint32_t>(count()), Sum(), scratch);
    if (threadIdx.x == 0) atomic_add(&record->non_finite, bad);
  }
  if (threadIdx.x == 0) atomicMax(&record->amax, largest);
}

constexpr int kTileWarps = 8, kTileThreads = kTileWarps * kLanes;
constexpr int kLaneColumns = 4, kTileColumns = kLanes * kLaneColumns;

// From: a pointer to the operand, or AnyFloats. Width: number of elements read and written at once, 1 or kLaneColumns,
// which then divides the number of columns.
template <int kRows, int Width>
struct WarpTile {
  static constexpr int kTileRows = kTileWarps * kRows;

  float values[kRows][kLaneColumns];
  int64_t row, column;  // the first of the calling lane

  // The number of tiles of a matrix.
  static unsigned count(int64_t rows, int64_t columns) {
    return static_cast<unsigned>(divide_up(rows, kTileRows) * divide_up(columns, kTileColumns));
  }

  // Tiles are numbered row by row.
  __device__ __forceinline__ WarpTile(int64_t tile, int64_t columns) {
    const int64_t across = (columns + kTileColumns - 1) / kTileColumns;
    const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
    row = tile / across * kTileRows + warp * kRows;
    column = tile % across * kTileColumns + lane * kLaneColumns;
  }

  // The tile's.
  __device__ __forceinline__ int64_t first_row() const { return row - static_cast<int>(threadIdx.x) / kLanes * kRows; }
  __device__ __forceinline__ int64_t first_column() const {
    return column - static_cast<int>(threadIdx.x) % kLanes * kLaneColumns;
  }

  // Elements beyond the matrix are 0.
  template <typename From>
  __device__ __forceinline__ void load_from(const From& from, int64_t rows, int64_t columns) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kLaneColumns; k += Width) {
        float part[Width] = {};
        if (row + r < rows && column + k < columns) load<Width>(from + ((row + r) * columns + column + k), part);
#pragma unroll
        for (int i = 0; i < Width; ++i) values[r][k + i] = part[i];
      }
    }
  }

  __device__ __forceinline__ uint32_t amax_of_row(int r) const {
    uint32_t amax = 0;
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) amax = MaxBits()(amax, magnitude_bits(values[r][k]));
    return amax;
  }
  __device__ __forceinline__ uint32_t amax_of_column(int k) const {
    uint32_t amax = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) amax = MaxBits()(amax, magnitude_bits(values[r][k]));
    return amax;
  }
  __device__ __forceinline__ int count_non_finite() const {
    int count = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int k = 0; k < kLaneColumns; ++k) count += non_finite(values[r][k]);
    }
    return count;
  }

  // to = round(values * before) * after, the factors being factors_of(r, k).
  template <typename Rounding, typename FactorsOf>
  __device__ __forceinline__ void store_rounded(BFloat16* to, int64_t rows, int64_t columns, const NarrowFormat& format,
                                                const Rounding& rounding, const FactorsOf& factors_of) const {
    auto place = rounding.rows_from(row);
#pragma unroll
    for (int r = 0; r < kRows; ++r, place = rounding.next(place)) {
#pragma unroll
      for (int k = 0; k < kLaneColumns; k += Width) {
        if (row + r >= rows || column + k >= columns) continue;
        float part[Width];
#pragma unroll
        for (int i = 0; i < Width; ++i) part[i] = values[r][k + i] * factors_of(r, k + i).before;
        rounding.round(format, place, column + k, part);
#pragma unroll
        for (int i = 0; i < Width; ++i) part[i] *= factors_of(r, k + i).after;
        store<Width>(to + ((row + r) * columns + column + k), part);
      }
    }
  }
};

// The largest over `lanes` neighbouring lanes, a power of two; every lane gets it.
__device__ __forceinline__ uint32_t max_over_lanes(uint32_t amax, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    amax = MaxBits()(amax, __shfl_xor_sync(kAllLanes, amax, distance));
  }
  return amax;
}

// Each of a lane's amaxes becomes the largest of this lane in kWarps neighbouring warps; default: all warps. scratch:
// shared memory for kCount words of every thread.
template <int kWarps = kTileWarps, int kCount>
__device__ __forceinline__ void max_over_warps(uint32_t (&amaxes)[kCount], uint32_t* scratch) {
  // This lane's thread in the first of these warps.
  const int thread =
      static_cast<int>(threadIdx.x) / (kWarps * kLanes) * (kWarps * kLanes) + static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int k = 0; k < kCount; ++k) scratch[k * kTileThreads + static_cast<int>(threadIdx.x)] = amaxes[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      amaxes[k] = MaxBits()(amaxes[k], scratch[k * kTileThreads + warp * kLanes + thread]);
    }
  }
}

// Null: there is none.
inline QuantizeRecord* quantize_record(const QuantizeArgs& args) {
  return args.record.defined() ? record_in<QuantizeRecord>("quantize", args.record) : nullptr;
}

// Rounding to codes of 8 bits. `extents`: the result of check_args(args); at least one row.
void quantize_to_codes(const QuantizeArgs& args, Rows extents, CudaStream& stream);

// ---- Codes of a WarpTile, eight bits each, as they lie and transposed. A lane has four neighbouring codes of each
// row, and four of each column in every four rows: both are words. Transposed columns go through shared memory.

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
