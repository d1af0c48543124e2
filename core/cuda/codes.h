// Tensors as codes of eight bits, and back.
#pragma once

#include "core/backend/quantize_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void to_codes(const ToCodesArgs& args, CudaStream& stream);
void from_codes(const FromCodesArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
