// Tensors as codes of eight bits, and back.
#pragma once

#include "core/backend/quantize_args.h"

namespace mantissa::cpu {

void to_codes(const ToCodesArgs& args);
void from_codes(const FromCodesArgs& args);

}  // namespace mantissa::cpu
