// Updates that are too small for the weights' format.
#pragma once

#include "core/backend/probe_args.h"

namespace mantissa::cpu {

void update_stagnation(const UpdateStagnationArgs& args);

}  // namespace mantissa::cpu
