// The largest magnitudes of tensors, and the scales that follow from them.
#pragma once

#include "core/backend/quantize_args.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void amax(const AmaxArgs& args, CudaStream& stream);
void tensor_scale(const TensorScaleArgs& args, CudaStream& stream);

}  // namespace mantissa::cuda
