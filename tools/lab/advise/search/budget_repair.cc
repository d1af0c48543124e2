#include "tools/lab/advise/search/budget_repair.h"

#include <numeric>
#include <utility>

namespace mantissa {

void repair_budget(const PlanUnits& units, const PlanGoal& goal, UnitPlan& plan, Draws& draws) {
  const PlanQuantity limited = goal.quantities()[0];
  std::vector<int> order(units.size());
  std::iota(order.begin(), order.end(), 0);
  for (int left = units.size(); left > 0 && !goal.is_met(units.evaluate(plan)); --left) {
    std::swap(order[draws.below(left)], order[left - 1]);
    const int unit = order[left - 1];
    plan[unit] = least_option(units.units()[unit], limited);
  }
}

}  // namespace mantissa
