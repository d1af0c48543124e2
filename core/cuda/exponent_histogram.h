// Magnitudes of a tensor counted by exponent.
#pragma once

#include "core/backend/probe_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void exponent_histogram(const ExponentHistogramArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
