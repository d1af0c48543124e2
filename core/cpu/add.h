// Sum of two tensors.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void add(const AddArgs& args);

}  // namespace mantissa::cpu
