// Sum over rows: the gradient of a bias.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void column_sum(const ColumnSumArgs& args);

}  // namespace mantissa::cpu
