// Fill with one value.
#pragma once

#include "core/cuda/stream.h"
#include "core/tensor/tensor.h"

namespace mantissa::cuda {

void fill(const Tensor& dst, float value, CudaStream& stream);

}  // namespace mantissa::cuda
