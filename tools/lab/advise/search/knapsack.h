// The exact optimum: a knapsack with one option to be chosen of each unit, and shared costs, by dynamic programming
// over lists of undominated partial plans (pareto_labels.h), which a Lagrangian bound keeps short (lagrange_bound.h).
//
// Where lists become longer than SearchSettings::most_labels the result may be worse than the best by SearchResult::gap
// in the quantity to be least, and still meets the budget.
#pragma once

#include "tools/lab/advise/search/plan_solver.h"

namespace mantissa {

class Knapsack : public PlanSolver {
 public:
  explicit Knapsack(const SearchSettings& settings) : most_labels_(settings.most_labels) {}
  std::string_view name() const override { return "knapsack"; }

 protected:
  Found search(const PlanUnits& units, const PlanGoal& goal) const override;

 private:
  int64_t most_labels_ = 0;
};

}  // namespace mantissa
