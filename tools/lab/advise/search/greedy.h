// By gain per cost, one move at a time; Dantzig, "Discrete-Variable Extremum Problems", Operations Research 5(2), 1957.
//
// It begins with the least of the quantity to be least, budget or not, and makes moves until the budget is met: always
// the one that needs least of that quantity for what it saves of the budget (of which no more counts than is needed).
// Then it makes moves that stay within the budget, those first that gain most for what they need of it, until none is
// left. A move gives one unit another option, or all units that share a cost the option in the same place, since a
// shared cost is often saved by all or by none. Costs and gains are those of the whole plan.
#pragma once

#include "tools/lab/advise/search/plan_solver.h"

namespace mantissa {

class Greedy : public PlanSolver {
 public:
  std::string_view name() const override { return "greedy"; }

 protected:
  Found search(const PlanUnits& units, const PlanGoal& goal) const override;
};

// The same for who works on units. It need not meet the budget, even where another plan does.
UnitPlan greedy_plan(const PlanUnits& units, const PlanGoal& goal);

}  // namespace mantissa
