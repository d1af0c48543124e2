// Sums over rows.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void column_sum(const ColumnSumArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
