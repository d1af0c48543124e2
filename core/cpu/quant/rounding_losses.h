// What a format with its scales loses of a matrix.
#pragma once

#include "core/backend/probe_args.h"

namespace mantissa::cpu {

void rounding_losses(const RoundingLossesArgs& args);

}  // namespace mantissa::cpu
