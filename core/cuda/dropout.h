// Dropout by a counter-based generator.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void dropout(const DropoutArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
