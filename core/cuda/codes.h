// What codes of eight bits stand for.
#pragma once

#include "core/backend/quantize_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void from_codes(const FromCodesArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
