// AdamW updates with compact state: AdamWArgs for which is_wide() is false.
#pragma once

#include "core/kernels/optimizer/args.h"

namespace mantissa::cpu {

// Requires that args has passed check_args() and that control.apply is set.
void adamw_blocks(const AdamWArgs& args, const UpdateControl& control);

}  // namespace mantissa::cpu
