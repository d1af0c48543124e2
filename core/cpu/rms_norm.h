// Root-mean-square normalisation and its gradients.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void rms_norm_forward(const RmsNormForwardArgs& args);
void rms_norm_backward(const RmsNormBackwardArgs& args);

}  // namespace mantissa::cpu
