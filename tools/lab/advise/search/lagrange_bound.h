// A bound on the best plan that a partial one can come to: the Lagrangian relaxation of the budget, by which a unit of
// the limited quantity costs lambda of the one to be least.
//
//   min over plans { least : limited <= limit }  >=  min over plans (least + lambda limited) - lambda limit
//
// for every lambda >= 0 (Fisher, "The Lagrangian Relaxation Method for Solving Integer Programming Problems",
// Management Science 27(1), 1981). Lambda is the one with the largest right side. The minimum over plans is one of sums
// without a budget, found for every set of paid shared costs by going through the units from the last to the first.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/lab/advise/search/open_costs.h"
#include "tools/lab/advise/search/plan_units.h"

namespace mantissa {

class LagrangeBound {
 public:
  LagrangeBound(const PlanUnits& units, const OpenCosts& open_costs, const PlanGoal& goal);

  // No plan that begins with units of these sums, has paid these shared costs, goes on at `unit` and meets the budget
  // has less of the quantity to be least than this. (What sums are rounded by is on the safe side.)
  double least(double limited_sum, double least_sum, int unit, uint64_t paid) const;
  // The best plan met while lambda was looked for. Empty if none met the budget.
  const UnitPlan& plan() const { return plan_; }

 private:
  // An option for a unit, from a set of paid costs.
  struct Step {
    double limited = 0;
    double least = 0;
    int next = 0;  // place of the set behind it
  };

  // Fills rest_; returns a plan of the least value.
  UnitPlan minimise(double lambda);
  int place(int unit, uint64_t paid) const;

  const OpenCosts& open_costs_;
  std::vector<std::vector<std::vector<Step>>> steps_;  // by unit, place of the set and option
  std::vector<std::vector<double>> rest_;              // the least value from a unit on, by place of the set
  double lambda_ = 0;
  double budget_value_ = 0;  // lambda limit
  UnitPlan plan_;
};

}  // namespace mantissa
