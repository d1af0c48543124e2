// Our attention kernels on a GPU: the choice between tensor cores (mma) and fp32 arithmetic (simt).
#pragma once

#include "core/cuda/stream.h"
#include "core/kernels/attention/args.h"

namespace mantissa::cuda {

void own_attention_forward(const AttentionForwardArgs& args, CudaStream& stream);
void own_attention_backward(const AttentionBackwardArgs& args, CudaStream& stream);

// Whether the operands fit tensor cores: bf16 or fp16, tensors and rows 16-byte aligned, head_dim <= 128, and scale >
// 0, so that the largest score has the largest exponent.
bool fits_tensor_cores(const AttentionForwardArgs& args);
bool fits_tensor_cores(const AttentionBackwardArgs& args);

// Terms of the backward pass for each query, computed once. Both are (B, H, padded_length). The padding represents
// queries that see nothing: their probabilities are 0.
struct AttentionRowTerms {
  float* log2_sums;  // lse / log(2); +Inf in the padding
  float* deltas;     // rowsum(out * d_out); 0 in the padding
  int64_t padded_length;

  constexpr int64_t offset(const AttentionShape& shape, int64_t b, int64_t head, int64_t t) const {
    return (b * shape.num_heads + head) * padded_length + t;
  }
};

// Lengths are padded to a multiple of this, so that kernels read whole, aligned blocks.
constexpr int64_t kRowTermsBlock = 128;

// In the stream's workspace.
AttentionRowTerms attention_row_terms(const AttentionBackwardArgs& args, CudaStream& stream);

// These need fits_tensor_cores().
void attention_forward_mma(const AttentionForwardArgs& args, CudaStream& stream);
void attention_keys_backward_mma(const AttentionBackwardArgs& args, const AttentionRowTerms& terms, CudaStream& stream);
void attention_queries_backward_mma(const AttentionBackwardArgs& args, const AttentionRowTerms& terms,
                                    CudaStream& stream);

// These take any float dtype, alignment, head_dim and scale.
void attention_forward_simt(const AttentionForwardArgs& args, CudaStream& stream);
void attention_backward_simt(const AttentionBackwardArgs& args, const AttentionRowTerms& terms, CudaStream& stream);

}  // namespace mantissa::cuda
