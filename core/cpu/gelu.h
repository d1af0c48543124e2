// Gaussian error linear unit, tanh and erf forms, and its derivative.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void gelu_forward(const GeluForwardArgs& args);
void gelu_backward(const GeluBackwardArgs& args);

}  // namespace mantissa::cpu
