// The largest magnitude and the number of NaN and Inf, by magnitude_bits(): integers, whose maximum loses no NaN. Bound
// by memory: x is read once, 16 bytes at a time where it is aligned, and a second time only by blocks that have met
// something that is not finite.
#include "core/kernels/quantize/args.h"

#include "core/cuda/device/elementwise.h"
#include "core/cuda/device/device.h"
#include "core/kernels/quantize/block_amax_cuda.h"
#include "core/quant/scales.h"

namespace mantissa::cuda {
namespace {

constexpr int kThreads = 256;

// Calls f(value) for the elements of the calling thread.
template <int Width, typename T, typename F>
__device__ __forceinline__ void for_each_element(const T* x, int64_t numel, F f) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kThreads;
  const int64_t whole = numel / Width;
#pragma unroll 2
  for (int64_t i = thread; i < whole; i += threads) {
    float values[Width];
    load<Width>(x + i * Width, values);
#pragma unroll
    for (int k = 0; k < Width; ++k) f(values[k]);
  }
  for (int64_t i = whole * Width + thread; i < numel; i += threads) f(widen(x[i]));
}

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

}  // namespace

void run(const AmaxArgs& args, CudaStream& stream) {
  check_args(args);
  auto* const record = record_in<QuantizeRecord>("amax", args.record);
  if (args.mode == GradientMode::kWrite) set_bytes_async(record, 0, sizeof(QuantizeRecord), stream.handle());
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

}  // namespace mantissa::cuda
