// A step of delayed scaling.
#pragma once

#include "core/backend/quantize_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void delayed_scales(const DelayedScalesArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
