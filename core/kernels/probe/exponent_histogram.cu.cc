// Each block counts in shared memory and adds what it has found to the record, which most of the bins leave as they
// are: a tensor's magnitudes are spread over some tens of exponents. x is read once, 16 bytes at a time where it is
// aligned. Atomics of integers: the result is the same in every order.
#include "core/kernels/probe/args.h"

#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/device.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256;

struct BlockHistogram {
  uint32_t counts[kHistogramBins];  // a block sees fewer than 2^32 elements
  uint32_t amax;
};

struct CountMagnitudes {
  BlockHistogram* block;

  __device__ __forceinline__ uint32_t operator()(float value) const {
    const uint32_t magnitude = magnitude_bits(value);
    atomicAdd(&block->counts[histogram_bin(magnitude)], 1u);
    return is_finite_magnitude(magnitude) ? magnitude : 0;
  }
};

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    exponent_histogram_kernel(const T* x, int64_t numel, ExponentHistogram* histogram) {
  auto* const block = shared_memory<BlockHistogram>();
  for (int bin = static_cast<int>(threadIdx.x); bin < kHistogramBins; bin += kThreads) block->counts[bin] = 0;
  if (threadIdx.x == 0) block->amax = 0;
  __syncthreads();

  const CountMagnitudes count{block};
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t whole = numel / Width;
  uint32_t amax = 0;
  for (int64_t i = thread; i < whole; i += threads) {
    float values[Width];
    load<Width>(x + i * Width, values);
#pragma unroll
    for (int k = 0; k < Width; ++k) {
      const uint32_t magnitude = count(values[k]);
      if (amax < magnitude) amax = magnitude;
    }
  }
  for (int64_t i = whole * Width + thread; i < numel; i += threads) {
    const uint32_t magnitude = count(widen(x[i]));
    if (amax < magnitude) amax = magnitude;
  }
  atomicMax(&block->amax, amax);
  __syncthreads();

  for (int bin = static_cast<int>(threadIdx.x); bin < kHistogramBins; bin += kThreads) {
    if (block->counts[bin] == 0) continue;
    // Of the same size and representation; CUDA has no such function for int64_t.
    auto* const total = reinterpret_cast<unsigned long long*>(&histogram->counts[bin]);
    atomicAdd(total, static_cast<unsigned long long>(block->counts[bin]));
  }
  if (threadIdx.x == 0) atomicMax(&histogram->amax, block->amax);
}

}  // namespace

void run(const ExponentHistogramArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const histogram = record_in<ExponentHistogram>("exponent_histogram", args.record);
  if (args.mode == GradientMode::kWrite) set_bytes_async(histogram, 0, sizeof(ExponentHistogram), stream.handle());
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

}  // namespace mantissa::cuda
