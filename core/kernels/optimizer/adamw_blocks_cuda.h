// The updates of AdamW whose state is kept in fewer bits: AdamWArgs that are not wide.
#pragma once

#include "core/cuda/stream.h"
#include "core/kernels/optimizer/args.h"

namespace mantissa::cuda {

// The arguments have passed check_args().
void adamw_blocks(const AdamWArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
