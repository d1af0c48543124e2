// Layer normalisation and its gradients.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void layer_norm_forward(const LayerNormForwardArgs& args);
void layer_norm_backward(const LayerNormBackwardArgs& args);

}  // namespace mantissa::cpu
