#include "tools/lab/advise/search/top_k.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace mantissa {
PlanSolver::Found TopK::search(const PlanUnits& units, const PlanGoal& goal) const {
  const int count = units.size();
  UnitPlan exact;
  std::vector<double> sensitivity;
  size_t most_options = 0;
  for (const PlanUnit& unit : units.units()) {
    exact.push_back(least_option(unit, PlanQuantity::kDamage));
    const auto damage = [](const PlanTotals& option) { return option.damage; };
    sensitivity.push_back(std::ranges::max(unit.options, {}, damage).damage);
    most_options = std::max(most_options, unit.options.size());
  }
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return sensitivity[a] > sensitivity[b]; });

  Found found{.choice = exact};
  const auto try_plan = [&](const UnitPlan& plan) {
    ++found.plans_tried;
    if (rank(goal, units.evaluate(plan)) < rank(goal, units.evaluate(found.choice))) found.choice = plan;
  };
  const PlanQuantity cost = goal.budget == Budget::kMemory ? PlanQuantity::kBytes : PlanQuantity::kSeconds;
  for (int low = -1; low < static_cast<int>(most_options); ++low) {
    UnitPlan plan;
    for (const PlanUnit& unit : units.units()) {
      const bool has_it = low >= 0 && low < static_cast<int>(unit.options.size());
      plan.push_back(has_it ? low : least_option(unit, cost));
    }
    try_plan(plan);
    for (const int unit : order) {
      plan[unit] = exact[unit];
      try_plan(plan);
    }
  }
  return found;
}

}  // namespace mantissa
