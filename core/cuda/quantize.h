// Rounding of matrices to low-precision formats.
#pragma once

#include "core/backend/quantize_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void quantize(const QuantizeArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
