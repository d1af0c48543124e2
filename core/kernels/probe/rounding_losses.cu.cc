// A warp has a unit at a time: its largest magnitude, then what becomes of each element. Threads count for themselves,
// blocks add up in shared memory and to the record: atomics of integers, the same in every order.
#include "core/kernels/probe/args.h"

#include "core/cuda/device/elementwise.h"
#include "core/cuda/record_in.h"
#include "core/kernels/quantize/block_amax_cuda.h"
#include "core/kernels/quantize/rounding_units.h"
#include "core/quant/scales.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kLanes;

// Calls f(value) for the elements of the unit that belong to the calling lane.
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
#pragma unroll
  for (int k = 0; k < kRoundingOutcomes; ++k) {
    const uint32_t of_warp = warp_reduce(counts[k], Sum());
    if (threadIdx.x % kLanes == 0) atomicAdd(&totals[k], of_warp);
  }
  __syncthreads();

  if (threadIdx.x != 0) return;
  // Of the same size and representation; CUDA has no such function for int64_t.
  const auto add = [](int64_t* to, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  };
  if (blockIdx.x == 0) add(&record->elements, static_cast<uint64_t>(units.rows * units.columns));
  add(&record->zeros, totals[static_cast<int>(RoundingOutcome::kZero)]);
  add(&record->underflowed, totals[static_cast<int>(RoundingOutcome::kUnderflowed)]);
  add(&record->subnormal, totals[static_cast<int>(RoundingOutcome::kSubnormal)]);
  add(&record->overflowed, totals[static_cast<int>(RoundingOutcome::kOverflowed)]);
  add(&record->non_finite, totals[static_cast<int>(RoundingOutcome::kNonFinite)]);
}

}  // namespace

void run(const RoundingLossesArgs& args, CudaStream& stream) {
  const Rows extents = check_args(args);
  auto* const record = record_in<FormatLosses>("rounding_losses", args.record);
  if (args.mode == GradientMode::kWrite) set_bytes_async(record, 0, sizeof(FormatLosses), stream.handle());
  const RoundingUnits units = rounding_units(args.format, args.axis, extents.rows, extents.columns);
  if (units.count == 0) return;
  const LaunchShape shape{.grid = blocks_for(units.count, kWarps, stream),
                          .block = kThreads,
                          .shared_bytes = kRoundingOutcomes * sizeof(uint32_t)};
  const float* const scale = args.scale.defined() ? args.scale.data<float>() : nullptr;
  dispatch(args.src.dtype(), [&]<typename T>() {
    launch(rounding_losses_kernel<T>, shape, stream.handle(), args.src.data<T>(), units, args.format, scale, record);
  });
}

}  // namespace mantissa::cuda
