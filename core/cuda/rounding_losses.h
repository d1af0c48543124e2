// What a format with its scales loses of a matrix.
#pragma once

#include "core/backend/probe_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void rounding_losses(const RoundingLossesArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
