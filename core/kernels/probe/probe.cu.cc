// Probes. All count or sum in a fixed way: integers by atomics, which give the same result in every order, and
// floating-point sums by chunks that depend on the number of elements alone. Bound by memory: operands are read once;
// rounding_losses reads blocks with a scale of their own twice.
#include <utility>

#include "core/cuda/device/elementwise.h"
#include "core/kernels/probe/args.h"
#include "core/quant/narrow_format.h"
#include "core/quant/scales.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kLanes;

// ---- compare: a block sums a chunk of elements, its threads in a fixed order; one more block adds the chunks.

constexpr int64_t kGranule = int64_t{16} * kThreads;
constexpr int64_t kMaxChunks = 1024;
constexpr size_t kScratchBytes = kThreads / kLanes * sizeof(double);

// The sum over all threads of the block, in each of them.
__device__ __forceinline__ ErrorSums sum_of_block(ErrorSums sums) {
  sums.elements = block_reduce(sums.elements, Sum(), shared_memory<int64_t>());
  sums.non_finite = block_reduce(sums.non_finite, Sum(), shared_memory<int64_t>());
  double* const scratch = shared_memory<double>();
  sums.reference_squares = block_reduce(sums.reference_squares, Sum(), scratch);
  sums.squares = block_reduce(sums.squares, Sum(), scratch);
  sums.products = block_reduce(sums.products, Sum(), scratch);
  sums.error_squares = block_reduce(sums.error_squares, Sum(), scratch);
  return sums;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) compare_chunks_kernel(const T* x, const float* reference, int64_t numel,
                                                                  int64_t chunk_elements, ErrorSums* chunks) {
  const int64_t begin = blockIdx.x * chunk_elements;
  const int64_t end = std::min(begin + chunk_elements, numel);
  ErrorSums sums;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) sums.add(widen(x[i]), reference[i]);
  sums = sum_of_block(sums);
  if (threadIdx.x == 0) chunks[blockIdx.x] = sums;
}

// One block: record += chunks.
__global__ void __launch_bounds__(kThreads)
    merge_errors_kernel(const ErrorSums* chunks, int64_t count, ErrorSums* record) {
  ErrorSums sums;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sums += chunks[i];
  sums = sum_of_block(sums);
  if (threadIdx.x == 0) *record += sums;
}

// ---- exponent_histogram: each block counts in shared memory, then adds its counts to the record. Few bins are not 0:
// a tensor's magnitudes are spread over some tens of exponents.

struct BlockHistogram {
  uint32_t counts[kHistogramBins];  // a block sees fewer than 2^32 elements
  uint32_t amax;
};

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    exponent_histogram_kernel(const T* x, int64_t numel, ExponentHistogram* histogram) {
  auto* const block = shared_memory<BlockHistogram>();
  for (int bin = static_cast<int>(threadIdx.x); bin < kHistogramBins; bin += kThreads) block->counts[bin] = 0;
  if (threadIdx.x == 0) block->amax = 0;
  __syncthreads();

  uint32_t amax = 0;
  for_each_element<Width>(x, numel, [&](float value) {
    const uint32_t magnitude = magnitude_bits(value);
    atomicAdd(&block->counts[histogram_bin(magnitude)], 1u);
    if (is_finite_magnitude(magnitude)) amax = MaxBits()(amax, magnitude);
  });
  atomicMax(&block->amax, amax);
  __syncthreads();

  for (int bin = static_cast<int>(threadIdx.x); bin < kHistogramBins; bin += kThreads) {
    if (block->counts[bin] == 0) continue;
    atomic_add(&histogram->counts[bin], block->counts[bin]);
  }
  if (threadIdx.x == 0) atomicMax(&histogram->amax, block->amax);
}

// ---- Counts of a few outcomes: threads count in registers, blocks add up in shared memory and to the record.

// Adds the counts of all threads to `totals` in shared memory, which must be 0. Ends with a barrier.
template <int kCounts>
__device__ __forceinline__ void add_up(const uint32_t (&counts)[kCounts], uint32_t* totals) {
#pragma unroll
  for (int k = 0; k < kCounts; ++k) {
    const uint32_t of_warp = warp_reduce(counts[k], Sum());
    if (threadIdx.x % kLanes == 0) atomicAdd(&totals[k], of_warp);
  }
  __syncthreads();
}

// rounding_losses: a warp has a unit at a time: its largest magnitude, then the outcome of each element. Calls f(value)
// for the elements of the unit that belong to the calling lane.
template <typename T, typename F>
__device__ __forceinline__ void for_each_element(const T* src, const RoundingUnits& units,
                                                 const RoundingUnits::Unit& unit, F f) {
  const int64_t elements = unit.rows * unit.columns;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) % kLanes; i < elements; i += kLanes) {
    f(widen(src[(unit.row + i / unit.columns) * units.columns + unit.column + i % unit.columns]));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    rounding_losses_kernel(const T* src, RoundingUnits units, TensorFormat format, const float* scale,
                           FormatLosses* record) {
  auto* const totals = shared_memory<uint32_t>();
  if (threadIdx.x < kRoundingOutcomes) totals[threadIdx.x] = 0;
  __syncthreads();

  const float tensor_scale = scale != nullptr ? *scale : 1.0f;
  const NarrowFormat narrow = narrow_format(format.format);
  uint32_t counts[kRoundingOutcomes] = {};
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes; index < units.count;
       index += static_cast<int64_t>(gridDim.x) * kWarps) {
    const RoundingUnits::Unit unit = units.at(index);
    float multiplier = tensor_scale;
    if (block_length(format.scaling) > 0) {
      uint32_t amax = 0;
      for_each_element(src, units, unit, [&](float value) { amax = MaxBits()(amax, magnitude_bits(value)); });
      multiplier = block_factors(format, warp_reduce(amax, MaxBits()), tensor_scale).before;
    }
    for_each_element(src, units, unit, [&](float value) {
      const int outcome = static_cast<int>(rounding_outcome(narrow, value, multiplier));
#pragma unroll
      for (int k = 0; k < kRoundingOutcomes; ++k) counts[k] += outcome == k ? 1 : 0;  // registers have no index
    });
  }
  add_up(counts, totals);

  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) atomic_add(&record->elements, static_cast<uint64_t>(units.rows * units.columns));
  atomic_add(&record->zeros, totals[static_cast<int>(RoundingOutcome::kZero)]);
  atomic_add(&record->underflowed, totals[static_cast<int>(RoundingOutcome::kUnderflowed)]);
  atomic_add(&record->subnormal, totals[static_cast<int>(RoundingOutcome::kSubnormal)]);
  atomic_add(&record->overflowed, totals[static_cast<int>(RoundingOutcome::kOverflowed)]);
  atomic_add(&record->non_finite, totals[static_cast<int>(RoundingOutcome::kNonFinite)]);
}

// update_stagnation. A place for each count of UpdateStagnation but `elements`, which the host knows.
constexpr int kZero = 0, kNonFinite = 1, kStagnant = 2, kCounts = kStagnant + kStagnationFormatCount;

struct Updates {
  const float *weight, *other;
  bool is_delta;  // other: the updates, or the weights after them
};

// The formats are constants of the code: a GPU has no array of the host's.
template <size_t... Index>
__device__ __forceinline__ void count_formats(float weight, float delta, uint32_t (&counts)[kCounts],
                                              std::index_sequence<Index...>) {
  constexpr Spacing kSpacings[] = {spacing_of(kStagnationFormats[Index])...};
  ((counts[kStagnant + Index] += is_stagnant(kSpacings[Index], weight, delta)), ...);
}

template <int Width>
__device__ __forceinline__ void count(const Updates& updates, int64_t i, uint32_t (&counts)[kCounts]) {
  float weight[Width], other[Width];
  load<Width>(updates.weight + i, weight);
  load<Width>(updates.other + i, other);
#pragma unroll
  for (int k = 0; k < Width; ++k) {
    const float delta = updates.is_delta ? other[k] : other[k] - weight[k];
    if (!is_finite_magnitude(magnitude_bits(weight[k])) || !is_finite_magnitude(magnitude_bits(delta))) {
      ++counts[kNonFinite];
      continue;
    }
    counts[kZero] += delta == 0.0f;
    count_formats(weight[k], delta, counts, std::make_index_sequence<kStagnationFormatCount>());
  }
}

template <int Width>
__global__ void __launch_bounds__(kThreads)
    update_stagnation_kernel(Updates updates, int64_t numel, UpdateStagnation* record) {
  auto* const totals = shared_memory<uint32_t>();
  if (threadIdx.x < kCounts) totals[threadIdx.x] = 0;
  __syncthreads();

  uint32_t counts[kCounts] = {};
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t whole = numel / Width;
  for (int64_t i = thread; i < whole; i += threads) count<Width>(updates, i * Width, counts);
  for (int64_t i = whole * Width + thread; i < numel; i += threads) count<1>(updates, i, counts);
  add_up(counts, totals);

  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) atomic_add(&record->elements, static_cast<uint64_t>(numel));
  atomic_add(&record->zero, totals[kZero]);
  atomic_add(&record->non_finite, totals[kNonFinite]);
  for (int format = 0; format < kStagnationFormatCount; ++format) {
    atomic_add(&record->stagnant[format], totals[kStagnant + format]);
  }
}

}  // namespace

void run(const CompareArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const record = start_record<ErrorSums>("compare", args.record, args.mode, stream);
  const int64_t numel = args.x.numel();
  if (numel == 0) return;
  const int64_t chunk_elements = kGranule * divide_up(divide_up(numel, kGranule), kMaxChunks);
  const int64_t count = divide_up(numel, chunk_elements);
  auto* const chunks = reinterpret_cast<ErrorSums*>(stream.workspace(static_cast<size_t>(count) * sizeof(ErrorSums)));
  const LaunchShape shape{.grid = static_cast<unsigned>(count), .block = kThreads, .shared_bytes = kScratchBytes};
  dispatch(args.x.dtype(), [&]<typename T>() {
    launch(compare_chunks_kernel<T>, shape, stream.handle(), args.x.data<T>(), args.reference.data<float>(), numel,
           chunk_elements, chunks);
  });
  const LaunchShape one{.grid = 1, .block = kThreads, .shared_bytes = kScratchBytes};
  launch(merge_errors_kernel, one, stream.handle(), chunks, count, record);
}

void run(const ExponentHistogramArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const histogram = start_record<ExponentHistogram>("exponent_histogram", args.record, args.mode, stream);
  const int64_t numel = args.x.numel();
  if (numel == 0) return;
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* const x = args.x.data<T>();
    const bool vectors = all_aligned(x);
    const LaunchShape shape{.grid = blocks_for(numel, kThreads * (vectors ? kVectorWidth<T> : 1), stream),
                            .block = kThreads,
                            .shared_bytes = sizeof(BlockHistogram)};
    launch(vectors ? exponent_histogram_kernel<kVectorWidth<T>, T> : exponent_histogram_kernel<1, T>, shape,
           stream.handle(), x, numel, histogram);
  });
}

void run(const RoundingLossesArgs& args, CudaStream& stream) {
  const Rows extents = check_args(args);
  auto* const record = start_record<FormatLosses>("rounding_losses", args.record, args.mode, stream);
  const RoundingUnits units = rounding_units(args.format, args.axis, extents.rows, extents.columns);
  if (units.count == 0) return;
  const LaunchShape shape{.grid = blocks_for(units.count, kWarps, stream),
                          .block = kThreads,
                          .shared_bytes = kRoundingOutcomes * sizeof(uint32_t)};
  const float* const scale = data_or_null<float>(args.scale);
  dispatch(args.src.dtype(), [&]<typename T>() {
    launch(rounding_losses_kernel<T>, shape, stream.handle(), args.src.data<T>(), units, args.format, scale, record);
  });
}

void run(const UpdateStagnationArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const record = start_record<UpdateStagnation>("update_stagnation", args.record, args.mode, stream);
  const int64_t numel = args.weight.numel();
  if (numel == 0) return;
  const bool is_delta = args.delta.defined();
  const Updates updates{args.weight.data<float>(), (is_delta ? args.delta : args.updated).data<float>(), is_delta};
  const bool vectors = all_aligned(updates.weight, updates.other);
  constexpr int kWidth = kVectorWidth<float>;
  const LaunchShape shape{.grid = blocks_for(numel, kThreads * (vectors ? kWidth : 1), stream),
                          .block = kThreads,
                          .shared_bytes = kCounts * sizeof(uint32_t)};
  launch(vectors ? update_stagnation_kernel<kWidth> : update_stagnation_kernel<1>, shape, stream.handle(), updates,
         numel, record);
}

}  // namespace mantissa::cuda
