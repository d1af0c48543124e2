// How far 16-bit arithmetic may move the small GPT of make_pytorch_reference.py from its fp32 result.
//
// u = eps / 2 is the largest relative error of one rounding: 2^-8 for bf16, 2^-11 for fp16. N independent roundings of
// u each add up to sqrt(N) u. Rounding errors are spread over [-u, u] and average u / sqrt(3). The remaining factor
// sqrt(3) covers the network's amplification, mostly in softmax and the norms.
//
// Logits, N = 30: 13 in each of two blocks (norm 1, weight and result of qkv, probabilities, attention, weight and
// result of its projection; norm 2, weight and result of up, gelu, weight and result of down), 3 for final norm, table
// and logits, 1 for the embedding.
// Gradients, N = 50: these 30, then backward 9 in each block (gradients of results and inputs of down, up and the
// projection, of probabilities, of qkv, of norm 1) and 2 for head and final norm.
//
// PyTorch's own distances from fp32 are 2.0 u and 2.2 u for logits, and up to 5 u (bf16) and 8 u (fp16) for gradients
// of single parameters. The last slightly exceeds sqrt(50) = 7.1.
#pragma once

#include <cmath>

#include "core/tensor/dtype.h"
#include "tests/testing/values.h"

namespace mantissa::testing {

inline double unit_roundoff(DType dtype) { return info(format_of(dtype)).epsilon / 2; }

// A relative error in the norm.
inline double logits_bound(DType dtype) { return std::sqrt(30.0) * unit_roundoff(dtype); }
inline double gradient_bound(DType dtype) { return std::sqrt(50.0) * unit_roundoff(dtype); }

// The absolute error of a mean loss over `targets`. The derivative of one token's loss by its logits, softmax - onehot,
// has a norm of at most sqrt(2). The logits' errors are independent between tokens.
inline double loss_bound(DType dtype, const std::vector<float>& logits, int64_t targets) {
  const double logit = norm(logits) / std::sqrt(static_cast<double>(logits.size()));  // root mean square
  return logits_bound(dtype) * logit * std::sqrt(2.0 / static_cast<double>(targets));
}

}  // namespace mantissa::testing
