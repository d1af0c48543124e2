// What is left of a budget, used: better plans one change or two away.
#pragma once

#include <vector>

#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa {

using OptionValues = std::vector<std::vector<double>>;  // by decision and option

double sum_of(const OptionValues& values, const Plan& plan);

// The options of a plan may sum up to this.
struct SumLimit {
  OptionValues amounts;
  double limit;
};

// While the sum of `costs` falls by it and no limit is exceeded, the best change of one decision is made; where there
// is none, the best of two together. A plan that exceeds a limit is left as it is.
Plan exchanged(Plan plan, const OptionValues& costs, const std::vector<SumLimit>& limits);

}  // namespace mantissa
