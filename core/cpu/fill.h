// Constant fill.
#pragma once

#include "core/tensor/tensor.h"

namespace mantissa::cpu {

// Float dtypes: the value rounded to the dtype. i32 and u8: zero only.
void fill(const Tensor& dst, float value);

}  // namespace mantissa::cpu
