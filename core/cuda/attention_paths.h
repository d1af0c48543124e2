// The kernels of attention. attention.cc chooses: tensor cores (mma) where fits_tensor_cores(), else simt.
#pragma once

#include "core/backend/attention_extents.h"
#include "core/cuda/attention_row_terms.h"
#include "core/cuda/stream.h"

namespace mantissa::cuda {

// bf16 or fp16; qkv, out and their gradients and all their rows 16-byte aligned; head_dim <= 128; scale > 0, so that
// the largest score has the largest exponent.
void attention_forward_mma(const AttentionForwardArgs& args, const AttentionExtents& extents, CudaStream& stream);
void attention_keys_backward_mma(const AttentionBackwardArgs& args, const AttentionExtents& extents,
                                 const AttentionRowTerms& terms, CudaStream& stream);
void attention_queries_backward_mma(const AttentionBackwardArgs& args, const AttentionExtents& extents,
                                    const AttentionRowTerms& terms, CudaStream& stream);

// Any float dtype, alignment, head_dim and scale.
void attention_forward_simt(const AttentionForwardArgs& args, const AttentionExtents& extents, CudaStream& stream);
void attention_keys_backward_simt(const AttentionBackwardArgs& args, const AttentionExtents& extents,
                                  const AttentionRowTerms& terms, CudaStream& stream);
void attention_queries_backward_simt(const AttentionBackwardArgs& args, const AttentionExtents& extents,
                                     const AttentionRowTerms& terms, CudaStream& stream);

}  // namespace mantissa::cuda
