// Conversion between float dtypes with an optional factor.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void cast(const CastArgs& args);

}  // namespace mantissa::cpu
