// Gated linear unit with SiLU and its derivative.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void swiglu_forward(const SwigluForwardArgs& args);
void swiglu_backward(const SwigluBackwardArgs& args);

}  // namespace mantissa::cpu
