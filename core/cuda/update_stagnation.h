// Updates that are too small for the weights' format.
#pragma once

#include "core/backend/probe_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void update_stagnation(const UpdateStagnationArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
