// Products of fp32 operands that are rounded to tf32, as tensor cores multiply them: Fp32Math::kTf32.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

// gemm() of fp32 matrices a and b rounded to 10 mantissa bits, to nearest, ties to even, and summed in fp32. A NaN
// stays one, and what rounds beyond the range becomes Inf. bias_gradient is the sum of a as it is. What b_cache
// keeps is the rounded b.
void gemm_tf32(const GemmArgs& args);

}  // namespace mantissa::cpu
