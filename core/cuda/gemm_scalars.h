// The two numbers of a product that GEMM libraries call alpha and beta, in device memory: where the product is divided
// by scales that the device alone knows.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

inline bool has_scales(const GemmArgs& args) { return args.a_scale.defined() || args.b_scale.defined(); }

// scalars[0] = alpha = 1 / a_scale * 1 / b_scale, scalars[1] = beta = 1 with kAccumulate, else 0.
void write_scalars(const GemmArgs& args, float* scalars, CudaStream& stream);

}  // namespace mantissa::cuda
