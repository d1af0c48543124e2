#include "tests/core/cuda/float8_kernels.h"

#include "core/cuda/device/device.h"
#include "core/cuda/device/float8.h"

namespace mantissa::cuda {
namespace {

constexpr unsigned kThreads = 128;

template <typename T>
__global__ void widen_kernel(const uint8_t* codes, float* values, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) values[i] = widen(T{codes[i]});
}

template <typename T>
__global__ void narrow_kernel(bool saturated, const float* values, uint8_t* codes, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) codes[i] = saturated ? narrow_saturated<T>(values[i]).bits : narrow<T>(values[i]).bits;
}

LaunchShape shape_of(int64_t count) {
  return {.grid = static_cast<unsigned>((count + kThreads - 1) / kThreads), .block = kThreads};
}

}  // namespace

void widen_codes(Format format, const uint8_t* codes, float* values, int64_t count, CudaStream& stream) {
  launch(format == Format::kE4M3 ? widen_kernel<Float8E4M3> : widen_kernel<Float8E5M2>, shape_of(count),
         stream.handle(), codes, values, count);
}

void narrow_values(Format format, Saturation saturation, const float* values, uint8_t* codes, int64_t count,
                   CudaStream& stream) {
  launch(format == Format::kE4M3 ? narrow_kernel<Float8E4M3> : narrow_kernel<Float8E5M2>, shape_of(count),
         stream.handle(), saturation == Saturation::kYes, values, codes, count);
}

}  // namespace mantissa::cuda
