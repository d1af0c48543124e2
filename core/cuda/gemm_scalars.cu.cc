#include "core/cuda/gemm_scalars.h"

#include "core/cuda/device/device.h"

namespace mantissa::cuda {
namespace {

// A scale that is null is 1.
__global__ void write_scalars_kernel(const float* a_scale, const float* b_scale, float beta, float* scalars) {
  const float a_inverse = a_scale != nullptr ? 1.0f / *a_scale : 1.0f;
  const float b_inverse = b_scale != nullptr ? 1.0f / *b_scale : 1.0f;
  scalars[0] = a_inverse * b_inverse;
  scalars[1] = beta;
}

const float* address_of(const Tensor& scale) { return scale.defined() ? scale.data<float>() : nullptr; }

}  // namespace

void write_scalars(const GemmArgs& args, float* scalars, CudaStream& stream) {
  launch(write_scalars_kernel, {.grid = 1, .block = 1}, stream.handle(), address_of(args.a_scale),
         address_of(args.b_scale), args.mode == GradientMode::kAccumulate ? 1.0f : 0.0f, scalars);
}

}  // namespace mantissa::cuda
