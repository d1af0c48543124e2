// Rotary position embedding; the inverse rotation is its derivative.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void rope(const RopeArgs& args);

}  // namespace mantissa::cpu
