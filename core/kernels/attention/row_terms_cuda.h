// What the backward pass of attention needs for each query, computed once.
#pragma once

#include "core/cuda/stream.h"
#include "core/kernels/attention/args.h"

namespace mantissa::cuda {

// Both (B, H, padded_length). The padding stands for queries that see nothing: their probabilities come out as 0.
struct AttentionRowTerms {
  float* log2_sums;  // lse / log(2); +Inf in the padding
  float* deltas;     // rowsum(out * d_out); 0 in the padding
  int64_t padded_length;

  constexpr int64_t offset(const AttentionShape& extents, int64_t b, int64_t head, int64_t t) const {
    return (b * extents.num_heads + head) * padded_length + t;
  }
};

// Lengths are padded to a multiple of this, so that kernels read whole, aligned blocks.
constexpr int64_t kRowTermsBlock = 128;

// In the stream's workspace.
AttentionRowTerms attention_row_terms(const AttentionBackwardArgs& args, const AttentionShape& extents,
                                      CudaStream& stream);

}  // namespace mantissa::cuda
