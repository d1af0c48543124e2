// The random Hadamard transform along the rows of a matrix.
#pragma once

#include "core/backend/quantize_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void hadamard(const HadamardArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
