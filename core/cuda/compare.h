// Sums of values, their references and their differences.
#pragma once

#include "core/backend/probe_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void compare(const CompareArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
