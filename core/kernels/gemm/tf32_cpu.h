// Products of fp32 operands that are rounded to tf32, as tensor cores multiply them: Fp32Math::kTf32.
#pragma once

#include "core/kernels/gemm/args.h"

namespace mantissa::cpu {

// Whether a product is to be computed so.
inline bool asks_for_tf32(const GemmArgs& args) {
  return args.fp32_math == Fp32Math::kTf32 && args.a.defined() && args.a.dtype() == DType::kF32;
}

// gemm() of fp32 matrices a and b rounded to 10 mantissa bits, to nearest, ties to even, and summed in fp32. A NaN
// stays one, and what rounds beyond the range becomes Inf. bias_gradient is the sum of a as it is. What b_cache
// keeps is the rounded b.
void gemm_tf32(const GemmArgs& args);

}  // namespace mantissa::cpu
