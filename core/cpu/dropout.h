// Dropout with counter-based random numbers. Applied to dy, it is its own derivative.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void dropout(const DropoutArgs& args);

}  // namespace mantissa::cpu
