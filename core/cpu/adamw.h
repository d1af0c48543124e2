// One AdamW update.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void adamw(const AdamWArgs& args);

}  // namespace mantissa::cpu
