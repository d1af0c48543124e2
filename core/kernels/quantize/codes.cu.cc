// Codes of e4m3 and e5m2 in 8 bits, as they lie and transposed, in one pass over the source, and values of codes.
#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/float8.h"
#include "core/kernels/quantize/tile_cuda.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cuda {
namespace {

// ---- One scale a tensor: a block reads a tile of 64 x 128, rounds it in registers, stores its rows of codes and
// transposes them in shared memory, 64 bytes of a column at a time.
//
// An element is multiplied by the scale in fp32 and converted once, which saturates finite products. Non-finite
// products are converted without saturation and stay visible.

constexpr int kPlainRows = 8, kPlainBlocks = 4;  // rows of a warp; blocks of a multiprocessor
using PlainTransposed = TransposedCodes<kPlainRows>;
constexpr size_t kPlainWords = PlainTransposed::kWords + kTileWarps;  // of shared memory; the last for the record

template <typename From>
struct CodeOperands {
  From src;
  CodeMatrices to;
  Format format;
  const float* scale;
  QuantizeRecord* record;  // null: there is none
};

template <typename T>
__device__ __forceinline__ uint32_t visible_code(float scaled) {
  return is_finite_magnitude(magnitude_bits(scaled)) ? narrow_saturated<T>(scaled).bits : narrow<T>(scaled).bits;
}

__device__ __forceinline__ uint32_t visible_code(Format format, float scaled) {
  return format == Format::kE4M3 ? visible_code<Float8E4M3>(scaled) : visible_code<Float8E5M2>(scaled);
}

// Four blocks to a multiprocessor leave enough registers; without the bound, ptxas takes fewer and spills. Width:
// number of elements that are read at once. kWhole: words of codes are stored at once.
template <int Width, bool kWhole, typename From>
__global__ void __launch_bounds__(kTileThreads, kPlainBlocks) quantize_codes_kernel(CodeOperands<From> p) {
  WarpTile<kPlainRows, Width> tile(blockIdx.x, p.to.columns);
  tile.load_from(p.src, p.to.rows, p.to.columns);
  uint32_t* const shared = shared_memory<uint32_t>();
  if (p.record != nullptr) {  // first, so that registers need not hold values beside their codes
    uint32_t amax = 0;
#pragma unroll
    for (int r = 0; r < kPlainRows; ++r) amax = MaxBits()(amax, tile.amax_of_row(r));
    add_to_record(
        p.record, amax, [&] { return tile.count_non_finite(); }, shared + PlainTransposed::kWords);
  }
  const float scale = *p.scale;
  const PlainTransposed transposed(shared);
  encode_tile<kWhole>(tile, p.to, transposed,
                      [&](int r, int k) { return visible_code(p.format, tile.values[r][k] * scale); });
  if (p.to.transposed == nullptr) return;
  __syncthreads();
  transposed.template store_to<kWhole>(p.to, tile.first_row(), tile.first_column());
}

template <int Width, bool kWhole, typename From>
void run_codes(const QuantizeArgs& args, Rows extents, const From& src, CudaStream& stream) {
  const CodeOperands<From> p{src, code_matrices(args, extents), args.format.format, args.scale.data<float>(),
                             quantize_record(args)};
  launch(quantize_codes_kernel<Width, kWhole, From>,
         {.grid = WarpTile<kPlainRows, Width>::count(extents.rows, extents.columns),
          .block = kTileThreads,
          .shared_bytes = kPlainWords * sizeof(uint32_t)},
         stream.handle(), p);
}

// ---- A scale for each block: a thread block reads a tile of 128 x 128, finds the amaxes of the scales' blocks in
// registers, where it also rounds the elements, and transposes in shared memory.
//
// Such a tile has whole blocks of every kind, and one whole tile of kMicroTiles scales, for rows as for transposed
// codes. So a thread block owns its scales: it stores them, and the padding after the last scales, in one run. Elements
// of the tile beyond the matrix are zeros, whose e8m0 scale is that padding.
//
// An element is multiplied by the block's scale in fp32 and converted once. Finite products are then within range. In a
// block with non-finite elements the multiplier is NaN, and so is each of its codes.

constexpr int kRowsOfWarp = 16, kTileRows = kTileWarps * kRowsOfWarp, kBlocksAtOnce = 2;
using Transposed = TransposedCodes<kRowsOfWarp>;
static_assert(kTileRows == kScaleTileRows && kTileColumns == 32 * kScaleTileBlocks);

template <typename From>
struct BlockCodeOperands {
  From src;
  CodeMatrices to;
  std::byte* scales;             // beside to.codes; null without them
  std::byte* transposed_scales;  // beside to.transposed; null without them
  TensorFormat format;
  QuantizeRecord* record;  // null: there is none
};

// Shared memory, in words: transposed codes; amaxes of each thread; kTileRows for scales (a word per row of codes, or
// the 512 bytes of kMicroTiles); a word per warp for sums over the block.
template <BlockAxis kAxis>
struct Shared {
  static constexpr int kTransposed = 0;
  static constexpr int kAmaxes = kAxis == BlockAxis::kColumns ? 0 : static_cast<int>(Transposed::kWords);
  static constexpr int kScales = kAmaxes + (kAxis == BlockAxis::kRows ? kLaneColumns * kTileThreads : 0);
  static constexpr int kSums = kScales + (kAxis == BlockAxis::kBoth ? 0 : kTileRows);
  static constexpr size_t kBytes = (kSums + kTileWarps) * sizeof(uint32_t);
};

__device__ __forceinline__ uint32_t code_of(Format format, float scaled) {
  return format == Format::kE4M3 ? narrow_saturated<Float8E4M3>(scaled).bits
                                 : narrow_saturated<Float8E5M2>(scaled).bits;
}

// Puts the scale of block `block` in row `row` of the tile's (or the transposed tile's) codes into `staged`.
__device__ __forceinline__ void stage_scale(uint32_t* staged, Scaling scaling, int row, int block, float after) {
  if (scaling == Scaling::kBlock) {
    staged[row] = std::bit_cast<uint32_t>(after);
  } else {
    const int64_t place = block_scale_index(BlockScaleLayout::kMicroTiles, kScaleTileRows, kTileColumns, row, block);
    reinterpret_cast<uint8_t*>(staged)[place] = micro_scale_of(after).code;
  }
}

// The tile begins at (row, column) of the matrix (rows, columns) of codes.
template <bool kWhole>
__device__ __forceinline__ void store_scales(std::byte* to, const uint32_t* staged, Scaling scaling, int64_t rows,
                                             int64_t columns, int64_t row, int64_t column) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kTileRows) return;
  if (scaling == Scaling::kBlock) {
    if (row + i >= rows) return;
    const int64_t place = block_scale_index(BlockScaleLayout::kRowBlocks128, rows, columns, row + i, column / 128);
    reinterpret_cast<float*>(to)[place] = std::bit_cast<float>(staged[i]);
  } else {
    const int64_t tile = block_scale_index(BlockScaleLayout::kMicroTiles, rows, columns, row, column / 32);
    store_codes<kWhole>(reinterpret_cast<uint8_t*>(to) + tile + i * kCodesOfWord, staged[i], kCodesOfWord);
  }
}

// Stores the scale of the tile, a square block. The last block of a row also stores the padding after it.
__device__ __forceinline__ void store_square_scale(std::byte* to, int64_t rows, int64_t columns, int64_t row,
                                                   int64_t column, float after) {
  constexpr auto kLayout = BlockScaleLayout::kSquareBlocks128;
  auto* const scales = reinterpret_cast<float*>(to);
  const int64_t block = column / 128, across = blocks_across(kLayout, columns);
  scales[block_scale_index(kLayout, rows, columns, row, block)] = after;
  if (block != across - 1) return;
  for (int64_t next = across; next % kSquareBlockPadding != 0; ++next) {
    scales[block_scale_index(kLayout, rows, columns, row, next)] = 0.0f;
  }
}

// The maxima of eight amaxes over eight neighbouring lanes: lane i of them gets that of amaxes[i]. In every round a
// lane hands over the half that it does not end with: seven exchanges instead of 24.
__device__ __forceinline__ uint32_t max_of_own(uint32_t (&amaxes)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    const bool upper = (lane & half) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const uint32_t kept = upper ? amaxes[i + half] : amaxes[i], given = upper ? amaxes[i] : amaxes[i + half];
      amaxes[i] = MaxBits()(kept, __shfl_xor_sync(kAllLanes, given, half));
    }
  }
  return amaxes[0];
}

// The multipliers of the tile's rows, for the blocks of the calling lane. Eight lanes, all of a block of 32 and a
// quarter of a block of 128, divide its rows: a lane makes two factors instead of sixteen.
template <typename Tile>
__device__ __forceinline__ void factors_of_rows(const Tile& tile, TensorFormat format, uint32_t* staged,
                                                float (&before)[kRowsOfWarp]) {
  constexpr int kSharers = 8;
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const bool whole_warp = format.scaling == Scaling::kBlock;
#pragma unroll
  for (int first = 0; first < kRowsOfWarp; first += kSharers) {
    uint32_t amaxes[kSharers];
#pragma unroll
    for (int r = 0; r < kSharers; ++r) amaxes[r] = tile.amax_of_row(first + r);
    uint32_t mine = max_of_own(amaxes);
    if (whole_warp) {
      mine = MaxBits()(mine, __shfl_xor_sync(kAllLanes, mine, kSharers));
      mine = MaxBits()(mine, __shfl_xor_sync(kAllLanes, mine, 2 * kSharers));
    }
    const BlockFactors factors = block_factors(format, mine, 1.0f);
    if (!whole_warp || lane < kSharers) {
      stage_scale(staged, format.scaling, warp * kRowsOfWarp + first + lane % kSharers, lane / kSharers, factors.after);
    }
#pragma unroll
    for (int r = 0; r < kSharers; ++r) before[first + r] = __shfl_sync(kAllLanes, factors.before, r, kSharers);
  }
}

// The multipliers of the calling lane's columns, over the whole tile or over the 32 rows of two warps.
template <typename Tile>
__device__ __forceinline__ void factors_of_columns(const Tile& tile, TensorFormat format, uint32_t* scratch,
                                                   uint32_t* staged, float (&before)[kLaneColumns]) {
  const int warp = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  uint32_t amaxes[kLaneColumns];
#pragma unroll
  for (int k = 0; k < kLaneColumns; ++k) amaxes[k] = tile.amax_of_column(k);
  const int warps = static_cast<int>(block_length(format.scaling)) / kRowsOfWarp;  // of a block's height
  warps == kTileWarps ? max_over_warps(amaxes, scratch) : max_over_warps<2>(amaxes, scratch);
#pragma unroll
  for (int k = 0; k < kLaneColumns; ++k) {
    const BlockFactors factors = block_factors(format, amaxes[k], 1.0f);
    before[k] = factors.before;
    if (warp % warps == 0) {
      stage_scale(staged, format.scaling, lane * kLaneColumns + k, warp / warps, factors.after);
    }
  }
}

// Two blocks to a multiprocessor leave enough registers. Width: number of elements that are read at once. kWhole: words
// of codes and of kMicroTiles are stored at once.
template <BlockAxis kAxis, int Width, bool kWhole, typename From>
__global__ void __launch_bounds__(kTileThreads, kBlocksAtOnce) quantize_block_codes_kernel(BlockCodeOperands<From> p) {
  const int64_t rows = p.to.rows, columns = p.to.columns;
  WarpTile<kRowsOfWarp, Width> tile(blockIdx.x, columns);
  tile.load_from(p.src, rows, columns);
  using At = Shared<kAxis>;
  uint32_t* const shared = shared_memory<uint32_t>();
  uint32_t amax = 0;
#pragma unroll
  for (int r = 0; r < kRowsOfWarp; ++r) amax = MaxBits()(amax, tile.amax_of_row(r));
  if (p.record != nullptr) {
    add_to_record(
        p.record, amax, [&] { return tile.count_non_finite(); }, shared + At::kSums);
  }

  const auto code_of_product = [&](int r, int k, float before) {
    return code_of(p.format.format, tile.values[r][k] * before);
  };
  const Transposed transposed(shared + At::kTransposed);
  if constexpr (kAxis == BlockAxis::kColumns) {
    float before[kRowsOfWarp];
    factors_of_rows(tile, p.format, shared + At::kScales, before);
    encode_tile<kWhole>(tile, p.to, nullptr, [&](int r, int k) { return code_of_product(r, k, before[r]); });
    __syncthreads();
    store_scales<kWhole>(p.scales, shared + At::kScales, p.format.scaling, rows, columns, tile.first_row(),
                         tile.first_column());
  } else if constexpr (kAxis == BlockAxis::kRows) {
    float before[kLaneColumns];
    factors_of_columns(tile, p.format, shared + At::kAmaxes, shared + At::kScales, before);
    encode_tile<kWhole>(tile, p.to, transposed, [&](int r, int k) { return code_of_product(r, k, before[k]); });
    __syncthreads();
    transposed.template store_to<kWhole>(p.to, tile.first_row(), tile.first_column());
    store_scales<kWhole>(p.transposed_scales, shared + At::kScales, p.format.scaling, columns, rows,
                         tile.first_column(), tile.first_row());
  } else {
    const BlockFactors factors = block_factors(p.format, block_reduce(amax, MaxBits(), shared + At::kSums), 1.0f);
    if (threadIdx.x == 0 && p.scales != nullptr) {
      store_square_scale(p.scales, rows, columns, tile.row, tile.column, factors.after);
    }
    if (threadIdx.x == 0 && p.transposed_scales != nullptr) {
      store_square_scale(p.transposed_scales, columns, rows, tile.column, tile.row, factors.after);
    }
    encode_tile<kWhole>(tile, p.to, transposed, [&](int r, int k) { return code_of_product(r, k, factors.before); });
    if (p.to.transposed == nullptr) return;
    __syncthreads();
    transposed.template store_to<kWhole>(p.to, tile.first_row(), tile.first_column());
  }
}

template <int Width, bool kWhole, typename From>
void run_block_codes(const QuantizeArgs& args, Rows extents, const From& src, CudaStream& stream) {
  const BlockCodeOperands<From> p{.src = src,
                                  .to = code_matrices(args, extents),
                                  .scales = raw_or_null(args.code_scales),
                                  .transposed_scales = raw_or_null(args.transposed_code_scales),
                                  .format = args.format,
                                  .record = quantize_record(args)};
  const auto on_axis = [&]<BlockAxis kAxis>() {
    launch(quantize_block_codes_kernel<kAxis, Width, kWhole, From>,
           {.grid = WarpTile<kRowsOfWarp, Width>::count(extents.rows, extents.columns),
            .block = kTileThreads,
            .shared_bytes = Shared<kAxis>::kBytes},
           stream.handle(), p);
  };
  if (args.axis == BlockAxis::kColumns) return on_axis.template operator()<BlockAxis::kColumns>();
  if (args.axis == BlockAxis::kRows) return on_axis.template operator()<BlockAxis::kRows>();
  on_axis.template operator()<BlockAxis::kBoth>();
}

// ---- from_codes: dst = round(value of codes / scale), fp32 in between. Bound by memory: three bytes an element of 16
// bits, sixteen elements at a time where addresses allow it.

template <typename T>
struct FromCodes {
  const uint8_t* codes;
  T* dst;
  NarrowFormat format;
  const float* scale;

  template <int Width>
  __device__ void apply(int64_t i) const {
    const auto packed = *reinterpret_cast<const Vector<uint8_t, Width>*>(codes + i);
    const float divisor = *scale;
    float values[Width];
#pragma unroll
    for (int k = 0; k < Width; ++k) values[k] = unscaled_value_of(format, packed.values[k], divisor);
    store<Width>(dst + i, values);
  }
};

}  // namespace

void quantize_to_codes(const QuantizeArgs& args, Rows extents, CudaStream& stream) {
  const auto run_from = [&]<int Width, bool kWhole>(const auto& src) {
    if (block_length(args.format.scaling) == 0) return run_codes<Width, kWhole>(args, extents, src, stream);
    run_block_codes<Width, kWhole>(args, extents, src, stream);
  };
  // Operands of native FP8 products have such sizes and addresses; others are stored one element at a time. A tensor of
  // scales is one row of whole words.
  if (all_aligned(args.src.raw()) && extents.columns % kLaneColumns == 0 && takes_words(args.codes, extents.columns) &&
      takes_words(args.transposed_codes, extents.rows) && takes_words(args.code_scales, kCodesOfWord) &&
      takes_words(args.transposed_code_scales, kCodesOfWord)) {
    return dispatch(args.src.dtype(), [&]<typename T>() {
      run_from.template operator()<kLaneColumns, true>(static_cast<const T*>(args.src.data<T>()));
    });
  }
  run_from.template operator()<1, false>(any_floats(args.src));
}

void run(const FromCodesArgs& args, CudaStream& stream) {
  check_args(args);
  dispatch(args.dst.dtype(), [&]<typename T>() {
    const FromCodes<T> operation{args.codes.data<uint8_t>(), args.dst.data<T>(), narrow_format(args.format),
                                 args.scale.data<float>()};
    run_elementwise<kVectorWidth<T, uint8_t>>(operation, args.dst.numel(), alignment_of(operation.codes, operation.dst),
                                              stream);
  });
}

}  // namespace mantissa::cuda
