// A PlanProblem as solvers see it: groups made into one unit each, everything in an order that depends on names alone.
//
// Units that share a cost stand next to each other as far as possible: a solver that goes through them in order has few
// shared costs on its mind at a time. A cost that only one unit can pay is part of its options.
#pragma once

#include <vector>

#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa {

struct PlanUnit {
  std::vector<int> decisions{};       // places in the problem
  std::vector<PlanTotals> options{};  // sums over the decisions
};

// The option with the least of a quantity, the first of equals.
int least_option(const PlanUnit& unit, PlanQuantity what);

struct UnitSharedCost {
  PlanTotals cost{};
  std::vector<PlanChoice> payers{};  // .decision is the place of a unit; in order, none twice
};

// An option for each unit.
using UnitPlan = std::vector<int>;

class PlanUnits {
 public:
  // ConfigError as check_problem(). The problem is not referred to later.
  explicit PlanUnits(const PlanProblem& problem);

  const std::vector<PlanUnit>& units() const { return units_; }
  const std::vector<UnitSharedCost>& shared_costs() const { return shared_costs_; }
  int size() const { return static_cast<int>(units_.size()); }
  int options(int unit) const { return static_cast<int>(units_[unit].options.size()); }
  // Places of the shared costs that a unit's option pays.
  const std::vector<int>& paid_by(int unit, int option) const { return paid_by_[unit][option]; }

  PlanTotals evaluate(const UnitPlan& choice) const;
  Plan plan_of(const UnitPlan& choice) const;

 private:
  std::vector<PlanUnit> units_;
  std::vector<UnitSharedCost> shared_costs_;
  std::vector<std::vector<std::vector<int>>> paid_by_;
  size_t decisions_ = 0;
};

}  // namespace mantissa
