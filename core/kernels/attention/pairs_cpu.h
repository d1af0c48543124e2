// Attention in bf16 on processors with dot products of bf16 pairs, at twice the speed of fp32. Queries, keys, values
// and d_out are multiplied as they are. Probabilities and d_scores are rounded to bf16 before the second products, as
// on GPUs. All sums, the softmax and its derivative stay in fp32. Subnormal operands count as 0.
#pragma once

#include "core/kernels/attention/args.h"
#include "core/kernels/attention/segments_cpu.h"

namespace mantissa::cpu {

// Whether to use these kernels: for bf16 and an even head_dim, if Bf16Gemm::kDotProducts is preferred.
bool attends_in_pairs(DType dtype, int64_t head_dim);

// Query blocks [begin, end) of one head.
void attend_pairs(const AttentionForwardArgs& args, const AttentionBlocks& shape, int64_t b, int64_t head,
                  int64_t begin, int64_t end);

AttentionBackwardKernels backward_pairs_kernels(int64_t head_dim);

}  // namespace mantissa::cpu
