// Sum of what the ranks contributed.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void sum_contributions(const SumContributionsArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
