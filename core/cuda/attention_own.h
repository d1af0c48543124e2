// Our attention kernels: which of them takes what.
#pragma once

#include "core/backend/attention_extents.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

void own_attention_forward(const AttentionForwardArgs& args, const AttentionExtents& extents, CudaStream& stream);
void own_attention_backward(const AttentionBackwardArgs& args, const AttentionExtents& extents, CudaStream& stream);

// Whether tensor cores take the operands: bf16 or fp16, tensors and rows 16-byte aligned, heads up to 128 wide, scale
// above 0.
bool fits_tensor_cores(const AttentionForwardArgs& args, const AttentionExtents& extents);
bool fits_tensor_cores(const AttentionBackwardArgs& args, const AttentionExtents& extents);

}  // namespace mantissa::cuda
