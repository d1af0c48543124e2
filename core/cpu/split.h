// fp32 numbers as sums of bf16 numbers.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void split(const SplitArgs& args);

}  // namespace mantissa::cpu
