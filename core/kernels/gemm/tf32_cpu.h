// Products of fp32 operands rounded to tf32, as tensor cores compute them: Fp32Math::kTf32.
#pragma once

#include "core/kernels/gemm/args.h"

namespace mantissa::cpu {

// Whether a product requires tf32.
inline bool asks_for_tf32(const GemmArgs& args) {
  return args.fp32_math == Fp32Math::kTf32 && args.a.defined() && args.a.dtype() == DType::kF32;
}

// gemm() of fp32 matrices a and b rounded to 10 mantissa bits (to nearest, ties to even), summed in fp32. NaN stays
// NaN; values that round beyond the range become Inf. bias_gradient sums the unrounded a. b_cache keeps the rounded b.
void gemm_tf32(const GemmArgs& args);

}  // namespace mantissa::cpu
