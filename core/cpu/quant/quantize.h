// Rounding of matrices to low-precision formats, and their amaxes.
#pragma once

#include "core/backend/quantize_args.h"

namespace mantissa::cpu {

void amax(const AmaxArgs& args);
void quantize(const QuantizeArgs& args);

}  // namespace mantissa::cpu
