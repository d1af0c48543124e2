// The updates of AdamW whose state is kept in fewer bits: AdamWArgs that are not wide.
#pragma once

#include "core/kernels/optimizer/args.h"

namespace mantissa::cpu {

// The arguments have passed check_args(), and the verdict.
void adamw_blocks(const AdamWArgs& args, const UpdateControl& control);

}  // namespace mantissa::cpu
