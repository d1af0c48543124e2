// Counts the values of a matrix that a format with its scales loses.
#pragma once

#include "core/backend/probe_args.h"

namespace mantissa::cpu {

void rounding_losses(const RoundingLossesArgs& args);

}  // namespace mantissa::cpu
