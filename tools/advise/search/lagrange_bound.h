// A bound on the best plan that a partial one can come to: the Lagrangian relaxation of the budget, by which a unit of
// the limited quantity costs lambda of the one to be least.
//
//   min over plans { least : limited <= limit }  >=  sum over units of min over options (least + lambda limited) -
//   lambda limit
//
// for every lambda >= 0 (Fisher, "The Lagrangian Relaxation Method for Solving Integer Programming Problems",
// Management Science 27(1), 1981). Lambda is the one with the largest right side. Of a shared cost each unit that can
// pay it bears an equal part, which together is never more than what is paid.
#pragma once

#include <vector>

#include "tools/advise/search/plan_units.h"

namespace mantissa {

class LagrangeBound {
 public:
  LagrangeBound(const PlanUnits& units, const PlanGoal& goal);

  // What an option adds to a partial plan's value.
  double value(int unit, int option) const { return values_[unit][option]; }
  // No plan that begins with units whose values sum up to `value`, and goes on at `unit`, and meets the budget has less
  // of the quantity to be least than this, up to the rounding of sums, which is left out of it on the safe side.
  double least(double value, int unit) const;
  // The best plan met while lambda was looked for; its units are those of the least values. Empty if none met the
  // budget.
  const UnitPlan& plan() const { return plan_; }

 private:
  std::vector<std::vector<double>> values_;
  std::vector<double> rest_;  // sums of the least values from a unit on
  double budget_value_ = 0;   // lambda limit
  UnitPlan plan_;
};

}  // namespace mantissa
