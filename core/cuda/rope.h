// Rotary position embedding.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void rope(const RopeArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
