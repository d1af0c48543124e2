#include "tools/lab/advise/search/bayesian.h"

#include <limits>
#include <utility>

#include "tools/lab/advise/search/budget_repair.h"
#include "tools/lab/advise/search/parzen_search.h"

namespace mantissa {

PlanSolver::Found Bayesian::search(const PlanUnits& units, const PlanGoal& goal) const {
  const auto objective = [&](const UnitPlan& plan) {
    const auto plan_rank = rank(goal, units.evaluate(plan));
    return plan_rank[0] == 0 ? plan_rank[1] : std::numeric_limits<double>::infinity();
  };
  const auto repair = [&](UnitPlan& plan, Draws& draws) { repair_budget(units, goal, plan, draws); };
  ParzenResult result = parzen_search(units, objective, {.seed = seed_, .evaluations = evaluations_, .repair = repair});
  return {.choice = std::move(result.plan), .plans_tried = result.evaluations};
}

}  // namespace mantissa
