// First non-finite value, counts and the sum of squares in one pass.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void tensor_stats(const TensorStatsArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
