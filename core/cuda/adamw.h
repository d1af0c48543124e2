// The AdamW update in one pass.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void adamw(const AdamWArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
