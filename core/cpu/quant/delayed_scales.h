// A step of delayed scaling.
#pragma once

#include "core/backend/quantize_args.h"

namespace mantissa::cpu {

void delayed_scales(const DelayedScalesArgs& args);

}  // namespace mantissa::cpu
