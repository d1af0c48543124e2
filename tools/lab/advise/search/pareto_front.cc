#include "tools/lab/advise/search/pareto_front.h"

#include <utility>

#include "tools/lab/advise/search/open_costs.h"
#include "tools/lab/advise/search/pareto_labels.h"

namespace mantissa {

ParetoFront pareto_front(const PlanProblem& problem, int64_t most_labels) {
  const PlanUnits units(problem);
  using enum PlanQuantity;
  const LabelList list = undominated_plans(
      units, OpenCosts(units), {.order = {kSeconds, kDamage, kBytes}, .criteria = 3, .most_labels = most_labels});
  ParetoFront front{.damage_gap = list.gaps[0], .bytes_gap = list.gaps[1]};
  for (const UnitPlan& units_plan : list.plans) {
    Plan plan = units.plan_of(units_plan);
    const PlanTotals totals = evaluate(problem, plan);
    front.plans.push_back({.plan = std::move(plan), .totals = totals});
  }
  return front;
}

}  // namespace mantissa
