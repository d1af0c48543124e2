// The kernels of attention. attention.cc chooses: tensor cores (mma) where fits_tensor_cores(), else simt.
#pragma once

#include "core/cuda/stream.h"
#include "core/kernels/attention/args.h"
#include "core/kernels/attention/row_terms_cuda.h"

namespace mantissa::cuda {

// bf16 or fp16; qkv, out and their gradients and all their rows 16-byte aligned; head_dim <= 128; scale > 0, so that
// the largest score has the largest exponent.
void attention_forward_mma(const AttentionForwardArgs& args, const AttentionShape& extents, CudaStream& stream);
void attention_keys_backward_mma(const AttentionBackwardArgs& args, const AttentionShape& extents,
                                 const AttentionRowTerms& terms, CudaStream& stream);
void attention_queries_backward_mma(const AttentionBackwardArgs& args, const AttentionShape& extents,
                                    const AttentionRowTerms& terms, CudaStream& stream);

// Any float dtype, alignment, head_dim and scale.
void attention_forward_simt(const AttentionForwardArgs& args, const AttentionShape& extents, CudaStream& stream);
void attention_keys_backward_simt(const AttentionBackwardArgs& args, const AttentionShape& extents,
                                  const AttentionRowTerms& terms, CudaStream& stream);
void attention_queries_backward_simt(const AttentionBackwardArgs& args, const AttentionShape& extents,
                                     const AttentionRowTerms& terms, CudaStream& stream);

}  // namespace mantissa::cuda
