// Rounding of matrices to low-precision formats.
#pragma once

#include "core/backend/quantize_args.h"

namespace mantissa::cpu {

void quantize(const QuantizeArgs& args);

}  // namespace mantissa::cpu
