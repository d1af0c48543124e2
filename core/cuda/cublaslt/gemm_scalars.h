// Numbers of a product in device memory, where it is divided by scales that the device alone knows: what GEMM libraries
// call alpha and beta, or, of a product of codes, the inverses of both scales.
#pragma once

#include "core/cuda/stream.h"
#include "core/kernels/gemm/args.h"

namespace mantissa::cuda {

inline bool has_scales(const GemmArgs& args) { return args.a_scale.defined() || args.b_scale.defined(); }

// scalars[0] = alpha = 1 / a_scale * 1 / b_scale, scalars[1] = beta = 1 with kAccumulate, else 0.
void write_scalars(const GemmArgs& args, float* scalars, CudaStream& stream);

// scalars[0] = 1 / a_scale, scalars[kInverseScaleStride] = 1 / b_scale: each at a multiple of 16 bytes.
constexpr int kInverseScaleStride = 4;
void write_inverse_scales(const GemmArgs& args, float* scalars, CudaStream& stream);

}  // namespace mantissa::cuda
