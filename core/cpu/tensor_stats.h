// Non-finite values and the sum of squares in one pass.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void tensor_stats(const TensorStatsArgs& args);

}  // namespace mantissa::cpu
