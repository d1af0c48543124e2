// Sum of the ranks' contributions in rank order.
#pragma once

#include "core/backend/kernel_args.h"

namespace mantissa::cpu {

void sum_contributions(const SumContributionsArgs& args);

}  // namespace mantissa::cpu
