// Magnitudes of a tensor counted by exponent.
#pragma once

#include "core/backend/probe_args.h"

namespace mantissa::cpu {

void exponent_histogram(const ExponentHistogramArgs& args);

}  // namespace mantissa::cpu
