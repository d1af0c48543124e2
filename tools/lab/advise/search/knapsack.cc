#include "tools/lab/advise/search/knapsack.h"

#include <algorithm>

#include "tools/lab/advise/search/greedy.h"
#include "tools/lab/advise/search/open_costs.h"
#include "tools/lab/advise/search/pareto_labels.h"

namespace mantissa {

PlanSolver::Found Knapsack::search(const PlanUnits& units, const PlanGoal& goal) const {
  const auto rank_of = [&](const UnitPlan& plan) { return rank(goal, units.evaluate(plan)); };
  const PlanQuantity least = goal.quantities()[1];
  const OpenCosts open_costs(units);
  const LagrangeBound bound(units, open_costs, goal);
  UnitPlan best = least_budget_plan(units, open_costs, goal);
  for (const UnitPlan& plan : {greedy_plan(units, goal), bound.plan()}) {
    if (!plan.empty() && rank_of(plan) < rank_of(best)) best = plan;
  }
  const LabelList list = undominated_plans(units, open_costs,
                                           {.order = goal.quantities(),
                                            .criteria = 2,
                                            .most_labels = most_labels_,
                                            .limit = goal.tolerated(),
                                            .bound = &bound,
                                            .incumbent = quantity(units.evaluate(best), least)});
  // Thinned lists may have lost what is as good as the plan from before. Of equals the list's is the first one.
  const bool is_exact = list.gaps[0] == 0;
  std::array<double, 4> best_rank = rank_of(best);
  bool is_from_list = false;
  for (const UnitPlan& plan : list.plans) {
    const std::array<double, 4> plan_rank = rank_of(plan);
    if (plan_rank > best_rank || (plan_rank == best_rank && is_from_list)) continue;
    best = plan;
    best_rank = plan_rank;
    is_from_list = true;
  }
  const double above_bound = std::max(0.0, quantity(units.evaluate(best), least) - bound.least(0, 0, 0, 0));
  return {.choice = best, .gap = is_exact ? 0.0 : std::min(list.gaps[0], above_bound)};
}

}  // namespace mantissa
