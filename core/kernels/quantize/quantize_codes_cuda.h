// Rounding of matrices to codes of 8 bits.
#pragma once

#include "core/cuda/stream.h"
#include "core/kernels/quantize/args.h"

namespace mantissa::cuda {

// Of arguments that make codes and have passed check_args(), which returned `extents`; at least one row.
void quantize_to_codes(const QuantizeArgs& args, Rows extents, CudaStream& stream);

}  // namespace mantissa::cuda
