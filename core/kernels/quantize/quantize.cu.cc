// Rounding to low-precision formats: reads an element, finds its block's amax from registers, multiplies, rounds in
// fp32 arithmetic and multiplies again. Fusing products with additions changes no bit: the products of
// core/quant/narrow_format.h are exact, and no other product meets an addition.
//
// Bound by memory when it rounds to nearest from aligned rows, for which each dtype of src has its own kernels; by the
// random words when it rounds stochastically.
#include "core/cuda/device/random_words.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/quantize/tile_cuda.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cuda {
namespace {

// Roundings of elements to a format of at most 8 bits: a struct with
//   Rows rows_from(int64_t row)
//       the position of the rows from `row` on; Rows next(Rows) is the row after it.
//   template <int Width> void round(const NarrowFormat& format, Rows row, int64_t column, float (&values)[Width])
//       rounds elements column ... column + Width - 1 of that row; column is a multiple of Width.

// To nearest, ties to even.
struct NarrowNearest {
  struct Rows {};
  __device__ __forceinline__ Rows rows_from(int64_t) const { return {}; }
  __device__ __forceinline__ Rows next(Rows rows) const { return rows; }

  template <int Width>
  __device__ __forceinline__ void round(const NarrowFormat& format, Rows, int64_t, float (&values)[Width]) const {
#pragma unroll
    for (int k = 0; k < Width; ++k) values[k] = round_to(format, values[k]);
  }
};

// Stochastically, see StochasticArgs. Width is 1, or a multiple of 4 that divides the number of columns.
struct NarrowStochastic {
  uint64_t seed;
  const int32_t* step;
  uint32_t site, first_sample;
  int64_t rows_per_sample, columns;

  struct Rows {
    int64_t sample, row;  // of the sample
  };
  // One division; later rows are counted.
  __device__ __forceinline__ Rows rows_from(int64_t row) const {
    const int64_t sample = row / rows_per_sample;
    return {sample, row - sample * rows_per_sample};
  }
  __device__ __forceinline__ Rows next(Rows rows) const {
    return rows.row + 1 < rows_per_sample ? Rows{rows.sample, rows.row + 1} : Rows{rows.sample + 1, 0};
  }

  template <int Width>
  __device__ __forceinline__ void round(const NarrowFormat& format, Rows rows, int64_t column,
                                        float (&values)[Width]) const {
    const auto words_of = [&](int64_t group) {
      return philox(seed, {static_cast<uint32_t>(group), site, first_sample + static_cast<uint32_t>(rows.sample),
                           static_cast<uint32_t>(*step)});
    };
    uint32_t words[Width];
    draw_words(rows.row * columns + column, words_of, words);
#pragma unroll
    for (int k = 0; k < Width; ++k) values[k] = round_stochastically_to(format, values[k], words[k]);
  }
};

// From: a pointer to src, or AnyFloats.
template <typename From>
struct Operands {
  From src;
  BFloat16* dst;
  int64_t rows, columns;
  TensorFormat format;
  const float* scale;      // null: the tensor has none
  QuantizeRecord* record;  // null: there is none
};

// Shared memory: kCount words of each thread for amaxes, then one of each warp for the record.
template <BlockAxis kAxis>
constexpr int kCount = kAxis == BlockAxis::kColumns ? 0
                       : kAxis == BlockAxis::kRows  ? kLaneColumns
                                                    : 1;
template <BlockAxis kAxis>
constexpr size_t kSharedBytes = (kCount<kAxis> * kTileThreads + kTileWarps) * sizeof(uint32_t);

// Blocks are as high as a tile, or one row high (kColumns; a warp then has kRows of them). A tensor with a single scale
// is a case of kColumns.
template <BlockAxis kAxis, int kRows, int Width, typename From, typename Rounding>
__global__ void __launch_bounds__(kTileThreads) quantize_kernel(Operands<From> p, Rounding rounding) {
  WarpTile<kRows, Width> tile(blockIdx.x, p.columns);
  tile.load_from(p.src, p.rows, p.columns);
  const float tensor = p.scale != nullptr ? *p.scale : 1.0f;
  const int lanes = static_cast<int>(block_length(p.format.scaling)) / kLaneColumns;  // of a block's width
  uint32_t amax = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) amax = MaxBits()(amax, tile.amax_of_row(r));
  uint32_t* const scratch = shared_memory<uint32_t>();
  const auto store = [&](const auto& factors_of) {
    tile.store_rounded(p.dst, p.rows, p.columns, narrow_format(p.format.format), rounding, factors_of);
  };

  if constexpr (kAxis == BlockAxis::kColumns) {
    BlockFactors factors[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      factors[r] = lanes == 0 ? BlockFactors{.before = tensor}
                              : block_factors(p.format, max_over_lanes(tile.amax_of_row(r), lanes), tensor);
    }
    store([&](int r, int) { return factors[r]; });
  } else if constexpr (kAxis == BlockAxis::kRows) {
    uint32_t amaxes[kLaneColumns];
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) amaxes[k] = tile.amax_of_column(k);
    max_over_warps(amaxes, scratch);
    BlockFactors factors[kLaneColumns];
#pragma unroll
    for (int k = 0; k < kLaneColumns; ++k) factors[k] = block_factors(p.format, amaxes[k], tensor);
    store([&](int, int k) { return factors[k]; });
  } else {
    uint32_t amaxes[1] = {max_over_lanes(amax, lanes)};
    max_over_warps(amaxes, scratch);
    const BlockFactors factors = block_factors(p.format, amaxes[0], tensor);
    store([&](int, int) { return factors; });
  }
  if (p.record == nullptr) return;
  add_to_record(
      p.record, amax, [&] { return tile.count_non_finite(); }, scratch + kCount<kAxis> * kTileThreads);
}

// Calls body.operator()<kAxis, kRows>() for the tiles that the blocks need.
template <typename Body>
void with_tiles(int64_t length, BlockAxis axis, const Body& body) {
  constexpr int kRowsOfColumns = 4;
  if (length == 0 || axis == BlockAxis::kColumns) {
    return body.template operator()<BlockAxis::kColumns, kRowsOfColumns>();
  }
  const auto with_axis = [&]<BlockAxis kAxis>() {
    if (length == 128) return body.template operator()<kAxis, 128 / kTileWarps>();
    if (length == 32) return body.template operator()<kAxis, 32 / kTileWarps>();
    return body.template operator()<kAxis, 16 / kTileWarps>();
  };
  if (axis == BlockAxis::kRows) return with_axis.template operator()<BlockAxis::kRows>();
  with_axis.template operator()<BlockAxis::kBoth>();
}

template <int Width, typename From, typename Rounding>
void run(const QuantizeArgs& args, Rows extents, const From& src, const Rounding& rounding, CudaStream& stream) {
  const Operands<From> p{.src = src,
                         .dst = args.dst.data<BFloat16>(),
                         .rows = extents.rows,
                         .columns = extents.columns,
                         .format = args.format,
                         .scale = data_or_null<float>(args.scale),
                         .record = quantize_record(args)};
  with_tiles(block_length(args.format.scaling), args.axis, [&]<BlockAxis kAxis, int kRows>() {
    const LaunchShape shape{.grid = WarpTile<kRows, Width>::count(p.rows, p.columns),
                            .block = kTileThreads,
                            .shared_bytes = kSharedBytes<kAxis>};
    launch(quantize_kernel<kAxis, kRows, Width, From, Rounding>, shape, stream.handle(), p, rounding);
  });
}

}  // namespace

void run(const QuantizeArgs& args, CudaStream& stream) {
  const Rows extents = check_args(args);
  if (extents.rows == 0) return;
  if (args.makes_codes()) return quantize_to_codes(args, extents, stream);
  const bool vectors = all_aligned(args.src.raw(), args.dst.raw()) && extents.columns % kLaneColumns == 0;
  if (args.stochastic.elements_per_sample != 0) {
    const NarrowStochastic rounding{.seed = args.stochastic.seed,
                                    .step = args.stochastic.step.data<int32_t>(),
                                    .site = args.stochastic.site,
                                    .first_sample = args.stochastic.first_sample,
                                    .rows_per_sample = args.stochastic.elements_per_sample / extents.columns,
                                    .columns = extents.columns};
    if (vectors) return run<kLaneColumns>(args, extents, any_floats(args.src), rounding, stream);
    return run<1>(args, extents, any_floats(args.src), rounding, stream);
  }
  if (!vectors) return run<1>(args, extents, any_floats(args.src), NarrowNearest{}, stream);
  dispatch(args.src.dtype(), [&]<typename T>() {
    run<kLaneColumns>(args, extents, static_cast<const T*>(args.src.data<T>()), NarrowNearest{}, stream);
  });
}

}  // namespace mantissa::cuda
