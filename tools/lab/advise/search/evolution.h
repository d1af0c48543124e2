// Evolution, (mu + lambda): the 64 best of parents and children are the next parents (Schwefel, "Numerical Optimization
// of Computer Models", 1981). A child takes each unit's option from one of two parents, then each unit another option
// with probability 1 / units. One that exceeds the budget is repaired (budget_repair.h). The first parents are the
// uniform plans and random ones.
#pragma once

#include "tools/lab/advise/search/plan_solver.h"

namespace mantissa {

class Evolution : public PlanSolver {
 public:
  explicit Evolution(const SearchSettings& settings) : seed_(settings.seed), generations_(settings.generations) {}
  std::string_view name() const override { return "evolution"; }

 protected:
  Found search(const PlanUnits& units, const PlanGoal& goal) const override;

 private:
  uint64_t seed_ = 0;
  int generations_ = 0;
};

}  // namespace mantissa
