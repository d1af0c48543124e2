// The largest magnitudes of tensors, and their scales.
#pragma once

#include "core/backend/quantize_args.h"

namespace mantissa::cpu {

void amax(const AmaxArgs& args);
void tensor_scale(const TensorScaleArgs& args);

}  // namespace mantissa::cpu
