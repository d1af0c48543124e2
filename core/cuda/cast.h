// Conversion between floating dtypes.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void cast(const CastArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
