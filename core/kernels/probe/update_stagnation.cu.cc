// Threads count for themselves, blocks add up in shared memory and to the record: atomics of integers, the same in
// every order. Bound by memory: both operands are read once.
#include "core/kernels/probe/args.h"

#include <utility>

#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/device.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256;

// A place for each count of UpdateStagnation but `elements`, which the host knows.
constexpr int kZero = 0, kNonFinite = 1, kStagnant = 2, kCounts = kStagnant + kStagnationFormatCount;

struct Updates {
  const float* weight;
  const float* other;
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
#pragma unroll
  for (int index = 0; index < kCounts; ++index) {
    const uint32_t of_warp = warp_reduce(counts[index], Sum());
    if (threadIdx.x % kLanes == 0) atomicAdd(&totals[index], of_warp);
  }
  __syncthreads();

  if (threadIdx.x != 0) return;
  // Of the same size and representation; CUDA has no such function for int64_t.
  const auto add = [](int64_t* to, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
  };
  if (blockIdx.x == 0) add(&record->elements, static_cast<uint64_t>(numel));
  add(&record->zero, totals[kZero]);
  add(&record->non_finite, totals[kNonFinite]);
  for (int format = 0; format < kStagnationFormatCount; ++format) {
    add(&record->stagnant[format], totals[kStagnant + format]);
  }
}

}  // namespace

void run(const UpdateStagnationArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const record = record_in<UpdateStagnation>("update_stagnation", args.record);
  if (args.mode == GradientMode::kWrite) set_bytes_async(record, 0, sizeof(UpdateStagnation), stream.handle());
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
