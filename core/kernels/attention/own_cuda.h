// Our attention kernels: which of them takes what.
#pragma once

#include "core/cuda/stream.h"
#include "core/kernels/attention/args.h"

namespace mantissa::cuda {

void own_attention_forward(const AttentionForwardArgs& args, const AttentionShape& extents, CudaStream& stream);
void own_attention_backward(const AttentionBackwardArgs& args, const AttentionShape& extents, CudaStream& stream);

// Whether tensor cores take the operands: bf16 or fp16, tensors and rows 16-byte aligned, heads up to 128 wide, scale
// above 0.
bool fits_tensor_cores(const AttentionForwardArgs& args, const AttentionShape& extents);
bool fits_tensor_cores(const AttentionBackwardArgs& args, const AttentionShape& extents);

}  // namespace mantissa::cuda
