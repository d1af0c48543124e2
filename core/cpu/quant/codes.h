// Converts 8-bit codes to values.
#pragma once

#include "core/backend/quantize_args.h"

namespace mantissa::cpu {

void from_codes(const FromCodesArgs& args);

}  // namespace mantissa::cpu
