// What codes of eight bits stand for.
#pragma once

#include "core/backend/quantize_args.h"

namespace mantissa::cpu {

void from_codes(const FromCodesArgs& args);

}  // namespace mantissa::cpu
