#include "core/cuda/device/device.h"
#include "core/kernels/gemm/problem_cublaslt.h"

namespace mantissa::cuda {
namespace {

// A null scale counts as 1.
__device__ __forceinline__ float inverse_of(const float* scale) { return scale != nullptr ? 1.0f / *scale : 1.0f; }

__global__ void write_scalars_kernel(const float* a_scale, const float* b_scale, float beta, float* scalars) {
  scalars[0] = inverse_of(a_scale) * inverse_of(b_scale);
  scalars[1] = beta;
}

__global__ void write_inverse_scales_kernel(const float* a_scale, const float* b_scale, float* scalars) {
  scalars[0] = inverse_of(a_scale);
  scalars[kInverseScaleStride] = inverse_of(b_scale);
}

}  // namespace

void write_scalars(const GemmArgs& args, float* scalars, CudaStream& stream) {
  launch(write_scalars_kernel, {.grid = 1, .block = 1}, stream.handle(), data_or_null<float>(args.a_scale),
         data_or_null<float>(args.b_scale), args.mode == GradientMode::kAccumulate ? 1.0f : 0.0f, scalars);
}

void write_inverse_scales(const GemmArgs& args, float* scalars, CudaStream& stream) {
  launch(write_inverse_scales_kernel, {.grid = 1, .block = 1}, stream.handle(), data_or_null<float>(args.a_scale),
         data_or_null<float>(args.b_scale), scalars);
}

}  // namespace mantissa::cuda
