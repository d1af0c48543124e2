// Sum of two tensors.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void add(const AddArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
