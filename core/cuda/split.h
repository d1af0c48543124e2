// fp32 numbers as sums of bf16 numbers.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void split(const SplitArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
