// The Bayesian search (parzen_search.h) as a solver: the objective is what is predicted of a plan. Plans that exceed
// the budget are repaired (budget_repair.h); one that still does counts as worse than all that do not.
#pragma once

#include "tools/lab/advise/search/plan_solver.h"

namespace mantissa {

class Bayesian : public PlanSolver {
 public:
  explicit Bayesian(const SearchSettings& settings) : seed_(settings.seed), evaluations_(settings.evaluations) {}
  std::string_view name() const override { return "bayesian"; }

 protected:
  Found search(const PlanUnits& units, const PlanGoal& goal) const override;

 private:
  uint64_t seed_ = 0;
  int evaluations_ = 0;
};

}  // namespace mantissa
