// Codes of e4m3 and e5m2 with one scale a tensor, as they lie and transposed, in one pass over the source: a block
// reads a tile of 64 x 128, rounds it in registers, stores its rows of codes and turns them over in shared memory, 64
// bytes of a column at a time.
//
// An element is multiplied by the scale in fp32 and converted once, which saturates what is finite; a product that is
// not finite is converted without, and stays visible.
#include "core/cuda/quantize_codes.h"

#include "core/cuda/device/any_floats.h"
#include "core/cuda/device/float8.h"
#include "core/cuda/quantize_tile.h"
#include "core/cuda/record_in.h"

namespace mantissa::cuda {
namespace {

constexpr int kRowsOfWarp = 8, kCodesOfWord = 4, kBlocksAtOnce = 4;
// Of the tile, turned over: a column's rows are words, and one more keeps columns on different banks.
constexpr int kColumnWords = kTileWarps * kRowsOfWarp / kCodesOfWord, kColumnStride = kColumnWords + 1;
constexpr size_t kSharedWords = kTileColumns * kColumnStride + kTileWarps;  // the last for the record

template <typename From>
struct CodeOperands {
  From src;
  uint8_t* codes;       // null: not wanted
  uint8_t* transposed;  // likewise
  int64_t rows, columns;
  Format format;
  const float* scale;
  QuantizeRecord* record;  // null: there is none
};

template <typename T>
__device__ __forceinline__ uint32_t code_of(float scaled) {
  return is_finite_magnitude(magnitude_bits(scaled)) ? narrow_saturated<T>(scaled).bits : narrow<T>(scaled).bits;
}

__device__ __forceinline__ uint32_t code_of(Format format, float scaled) {
  return format == Format::kE4M3 ? code_of<Float8E4M3>(scaled) : code_of<Float8E5M2>(scaled);
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

// With four blocks to a multiprocessor there are registers enough: left to itself, ptxas takes fewer and spills.
// Width: of the elements that are read at once. kWhole: words of codes are stored at once.
template <int Width, bool kWhole, typename From>
__global__ void __launch_bounds__(kTileThreads, kBlocksAtOnce) quantize_codes_kernel(CodeOperands<From> p) {
  using Tile = WarpTile<kRowsOfWarp, Width>;
  Tile tile(blockIdx.x, p.columns);
  tile.load_from(p.src, p.rows, p.columns);
  uint32_t* const turned = shared_memory<uint32_t>();
  if (p.record != nullptr) {  // first: then no register holds what has become a code
    uint32_t amax = 0;
#pragma unroll
    for (int r = 0; r < kRowsOfWarp; ++r) amax = MaxBits()(amax, tile.amax_of_row(r));
    add_to_record(
        p.record, amax, [&] { return tile.count_non_finite(); }, turned + kTileColumns * kColumnStride);
  }
  const float scale = *p.scale;
  const int first = static_cast<int>(threadIdx.x) % kLanes * kLaneColumns;  // column of the tile
  const int word_row = static_cast<int>(threadIdx.x) / kLanes * kRowsOfWarp / kCodesOfWord;

  uint32_t columns[kLaneColumns] = {};
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) {
    uint32_t row = 0;
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) {
      const uint32_t code = code_of(p.format, tile.values[r][k] * scale);
      row |= code << (8 * k);
      columns[k] |= code << (8 * (r % kCodesOfWord));
    }
    if (p.codes != nullptr && tile.row + r < p.rows && tile.column < p.columns) {
      store_codes<kWhole>(p.codes + (tile.row + r) * p.columns + tile.column, row, p.columns - tile.column);
    }
    if (r % kCodesOfWord != kCodesOfWord - 1) continue;
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) {
      turned[(first + k) * kColumnStride + word_row + r / kCodesOfWord] = columns[k];
      columns[k] = 0;
    }
  }
  if (p.transposed != nullptr) {
    __syncthreads();
    const int64_t row_of_tile = tile.row - word_row * kCodesOfWord, column_of_tile = tile.column - first;
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x); i < kTileColumns * kColumnWords; i += kTileThreads) {
      const int64_t column = column_of_tile + i / kColumnWords;
      const int64_t row = row_of_tile + i % kColumnWords * kCodesOfWord;
      if (column >= p.columns || row >= p.rows) continue;
      store_codes<kWhole>(p.transposed + column * p.rows + row,
                          turned[i / kColumnWords * kColumnStride + i % kColumnWords], p.rows - row);
    }
  }
}

template <int Width, bool kWhole, typename From>
void run(const QuantizeArgs& args, Rows extents, const From& src, CudaStream& stream) {
  const CodeOperands<From> p{
      .src = src,
      .codes = args.codes.defined() ? args.codes.data<uint8_t>() : nullptr,
      .transposed = args.transposed_codes.defined() ? args.transposed_codes.data<uint8_t>() : nullptr,
      .rows = extents.rows,
      .columns = extents.columns,
      .format = args.format.format,
      .scale = args.scale.data<float>(),
      .record = args.record.defined() ? record_in<QuantizeRecord>("quantize", args.record) : nullptr};
  constexpr int kTileRows = WarpTile<kRowsOfWarp, Width>::kTileRows;
  const int64_t down = (p.rows + kTileRows - 1) / kTileRows, across = (p.columns + kTileColumns - 1) / kTileColumns;
  launch(quantize_codes_kernel<Width, kWhole, From>,
         {.grid = static_cast<unsigned>(down * across),
          .block = kTileThreads,
          .shared_bytes = kSharedWords * sizeof(uint32_t)},
         stream.handle(), p);
}

bool takes_words(const Tensor& codes, int64_t row_length) {
  return !codes.defined() ||
         (reinterpret_cast<uintptr_t>(codes.raw()) % sizeof(uint32_t) == 0 && row_length % kCodesOfWord == 0);
}

}  // namespace

void quantize_to_codes(const QuantizeArgs& args, Rows extents, CudaStream& stream) {
  const bool vectors = all_aligned(args.src.raw()) && extents.columns % kLaneColumns == 0;
  // What units multiply has such sizes and addresses: the rest, one element at a time.
  if (vectors && takes_words(args.codes, extents.columns) && takes_words(args.transposed_codes, extents.rows)) {
    return dispatch(args.src.dtype(), [&]<typename T>() {
      run<kLaneColumns, true>(args, extents, static_cast<const T*>(args.src.data<T>()), stream);
    });
  }
  run<1, false>(args, extents, any_floats(args.src), stream);
}

}  // namespace mantissa::cuda
