// Configurations of GradScaler that reproduce other systems' dynamic loss scalers state for state.
//
//                     init   interval  delay  hysteresis (refill)   floor
//   pytorch           2^16   2000      0      none                  none
//   megatron          2^32   1000      0      2 (on growth)         1, clamps
//   deepspeed         2^16   1000      1      2 (on growth)         1, overflow there is an error
//   deepspeed_0.17.0  2^16   1000      0      2 (on growth)         1, overflow there is an error
//
// DeepSpeed counts one clean step more before the first growth after an overflow since 0.17.1. Read in
// torch/amp/grad_scaler.py and AmpKernels.cu; megatron/core/optimizer/grad_scaler.py;
// deepspeed/runtime/fp16/loss_scaler.py.
//
// Two differences are deliberate. Those systems see a non-finite loss as overflow of its gradients and lower the scale;
// here it is a fault. Megatron and DeepSpeed let the scale grow past the largest fp32 number; here growth stops before
// it, as in PyTorch.
#pragma once

#include <string_view>
#include <vector>

#include "amp/grad_scaler.h"

namespace mantissa {

std::vector<std::string_view> scaler_preset_names();

// Throws ConfigError with the list of names if there is none of that name.
ScalerConfig scaler_preset(std::string_view name);

}  // namespace mantissa
