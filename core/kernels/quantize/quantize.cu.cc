// Rounding to low-precision formats, the random Hadamard transform, and the scales of tensors.
#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/random_words.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/quantize/tile_cuda.h"
#include "core/kernels/reduction/update_decision.h"
#include "core/quant/narrow_format.h"
#include "core/quant/scales.h"

namespace mantissa::cuda {
namespace {

// ---- quantize: reads an element, finds its block's amax from registers, multiplies, rounds in fp32 arithmetic and
// multiplies again. Fusing products with additions changes no bit: the products of core/quant/narrow_format.h are
// exact, and no other product meets an addition.
//
// Bound by memory when it rounds to nearest from aligned rows, for which each dtype of src has its own kernels; by the
// random words when it rounds stochastically.

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

// ---- hadamard: 16 rows at a time, four columns of them in a thread's registers: butterflies between rows, no exchange
// with other threads. Bound by memory: each operand is read or written once.

constexpr int kLength = static_cast<int>(kHadamardLength);
constexpr int kWidth = 4;  // columns: with more, 16 rows would not fit into registers

template <typename X, typename Y>
struct Hadamard {
  const X* x;
  Y* y;
  int64_t columns;

  // `group`: 16 rows.
  template <int Width>
  __device__ __forceinline__ void apply(int64_t group, int64_t column) const {
    const int64_t begin = group * kLength * columns + column;
    float values[kLength][Width];
#pragma unroll
    for (int row = 0; row < kLength; ++row) {
      load<Width>(x + begin + row * columns, values[row]);
#pragma unroll
      for (int k = 0; k < Width; ++k) {
        if (hadamard_negates(row)) values[row][k] = -values[row][k];
      }
    }
#pragma unroll
    for (int distance = 1; distance < kLength; distance *= 2) {
#pragma unroll
      for (int row = 0; row < kLength; ++row) {
        if ((row & distance) != 0) continue;
#pragma unroll
        for (int k = 0; k < Width; ++k) {
          const float a = values[row][k], b = values[row + distance][k];
          values[row][k] = a + b;
          values[row + distance][k] = a - b;
        }
      }
    }
#pragma unroll
    for (int row = 0; row < kLength; ++row) {
#pragma unroll
      for (int k = 0; k < Width; ++k) values[row][k] *= 0.25f;
      store<Width>(y + begin + row * columns, values[row]);
    }
  }
};

// ---- amax: the largest magnitude and the number of NaN and Inf. Bound by memory: x is read once, 16 bytes at a time
// where it is aligned; only blocks with non-finite elements read it twice.

constexpr int kThreads = 256;

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads) amax_kernel(const T* x, int64_t numel, QuantizeRecord* record) {
  uint32_t amax = 0;
  for_each_element<Width>(x, numel, [&](float value) { amax = MaxBits()(amax, magnitude_bits(value)); });
  const auto count = [&] {
    int bad = 0;
    for_each_element<Width>(x, numel, [&](float value) { bad += non_finite(value); });
    return bad;
  };
  add_to_record(record, amax, count, shared_memory<uint32_t>());
}

__global__ void tensor_scale_kernel(const QuantizeRecord* record, float max, float* scale) {
  *scale = mantissa::tensor_scale(record->amax, max, 0, 1.0f);
}

// ---- delayed_scales: a thread for each tensor runs core/quant/scales.h with a history in device memory,
// unless the step was held, which is read there too. A kernel of its own counts up the number of entries, which all
// threads read. Bound by the latency of 4 bytes for each entry of a history; small blocks spread the tensors over the
// device.

struct DelayedScales {
  const QuantizeRecord* records;  // (ranks, tensors)
  QuantizeRecord *mine, *total;
  uint32_t* history;
  float* scales;
  const float* maxima;
  const int32_t* entries;
  const UpdateDecision* decision;  // null: not held
  DelayedScalingOptions options;
  int64_t ranks, tensors;
};

__device__ __forceinline__ bool is_held(const UpdateDecision* decision) {
  return decision != nullptr && decision->held;
}

__global__ void __launch_bounds__(kLanes) delayed_scales_kernel(DelayedScales p) {
  const int64_t tensor = static_cast<int64_t>(blockIdx.x) * kLanes + threadIdx.x;
  if (tensor >= p.tensors) return;
  if (!is_held(p.decision)) {
    const QuantizeRecord total = fold_records(p.records + tensor, p.ranks, p.tensors);
    p.total[tensor] = total;
    p.scales[tensor] = next_delayed_scale(p.options, p.history + tensor * p.options.history, *p.entries, total.amax,
                                          p.maxima[tensor], p.scales[tensor]);
  }
  p.mine[tensor] = {};
}

__global__ void count_entry_kernel(int32_t* entries, const UpdateDecision* decision) {
  if (!is_held(decision)) ++*entries;
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

void run(const HadamardArgs& args, CudaStream& stream) {
  const Rows rows = check_args(args);
  dispatch(args.x.dtype(), args.y.dtype(), [&]<typename X, typename Y>() {
    const Hadamard<X, Y> operation{args.x.data<X>(), args.y.data<Y>(), rows.columns};
    run_rowwise<kWidth>(
        operation,
        {.rows = rows.rows / kLength, .columns = rows.columns, .alignment = alignment_of(operation.x, operation.y)},
        stream);
  });
}

void run(const AmaxArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const record = start_record<QuantizeRecord>("amax", args.record, args.mode, stream);
  const int64_t numel = args.x.numel();
  if (numel == 0) return;
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* const x = args.x.data<T>();
    const bool vectors = all_aligned(x);
    const LaunchShape shape{.grid = blocks_for(numel, kThreads * (vectors ? kVectorWidth<T> : 1), stream),
                            .block = kThreads,
                            .shared_bytes = kThreads / kLanes * sizeof(uint32_t)};
    launch(vectors ? amax_kernel<kVectorWidth<T>, T> : amax_kernel<1, T>, shape, stream.handle(), x, numel, record);
  });
}

void run(const TensorScaleArgs& args, CudaStream& stream) {
  check_args(args);
  launch(tensor_scale_kernel, {.grid = 1, .block = 1}, stream.handle(),
         record_in<QuantizeRecord>("tensor_scale", args.record), args.max, args.scale.data<float>());
}

void run(const DelayedScalesArgs& args, CudaStream& stream) {
  constexpr const char* kOp = "delayed_scales";
  const auto [ranks, tensors] = check_args(args);
  int32_t* const entries = args.entries.data<int32_t>();
  const UpdateDecision* const decision =
      args.decision.defined() ? record_in<UpdateDecision>(kOp, args.decision) : nullptr;
  const DelayedScales p{.records = record_in<QuantizeRecord>(kOp, args.records),
                        .mine = record_in<QuantizeRecord>(kOp, args.mine),
                        .total = record_in<QuantizeRecord>(kOp, args.total),
                        .history = reinterpret_cast<uint32_t*>(args.history.data<int32_t>()),
                        .scales = args.scales.data<float>(),
                        .maxima = args.maxima.data<float>(),
                        .entries = entries,
                        .decision = decision,
                        .options = args.options,
                        .ranks = ranks,
                        .tensors = tensors};
  const auto blocks = static_cast<unsigned>(divide_up(tensors, kLanes));
  launch(delayed_scales_kernel, {.grid = blocks, .block = kLanes}, stream.handle(), p);
  launch(count_entry_kernel, {.grid = 1, .block = 1}, stream.handle(), entries, decision);
}

}  // namespace mantissa::cuda
