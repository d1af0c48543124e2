// The plans that no other one beats in time, memory and predicted loss at once.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa {

struct FrontPlan {
  Plan plan{};
  PlanTotals totals{};
};

struct ParetoFront {
  std::vector<FrontPlan> plans{};  // by rising time; of plans with the same totals one
  // 0 where the front is complete. Else for every plan that there is the front has one that takes no longer, with at
  // most so much more damage and so many more bytes.
  double damage_gap = 0;
  double bytes_gap = 0;
};

// By dynamic programming (pareto_labels.h), which thins its lists beyond `most_labels`. ConfigError as check_problem().
ParetoFront pareto_front(const PlanProblem& problem, int64_t most_labels = 1 << 12);

}  // namespace mantissa
