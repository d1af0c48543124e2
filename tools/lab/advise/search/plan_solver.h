// Solvers: a PlanProblem and a budget in, a plan out. Each is a file of its own behind this interface.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/lab/advise/search/plan_units.h"

namespace mantissa {

struct SearchResult {
  Plan plan{};
  PlanTotals totals{};
  // Where no plan meets the budget, it is one that exceeds it least, and of those the best.
  bool meets_budget = true;
  // The best plan is better by at most this in the quantity to be least: 0 where it is known to be the best. Nothing
  // where the solver cannot tell.
  std::optional<double> gap{};
  int64_t plans_tried = 0;  // of the enumeration, the random ones and those by sensitivity: the work that they did
};

struct SearchSettings {
  uint64_t seed = 1;              // of solvers that draw random numbers
  int64_t most_labels = 1 << 16;  // of the knapsack; beyond that it is no longer exact (pareto_labels.h)
  int64_t most_plans = 1 << 22;   // of the enumeration, which refuses more
  int generations = 150;          // of the evolution, of 64 plans each
  int evaluations = 400;          // of the Bayesian search
};

class PlanSolver {
 public:
  virtual ~PlanSolver() = default;
  virtual std::string_view name() const = 0;
  // The same result for the same problem, whatever the order of decisions, groups and shared costs. Whether the budget
  // can be met at all is found exactly, by all solvers alike. ConfigError as check_problem() and check_goal().
  SearchResult solve(const PlanProblem& problem, const PlanGoal& goal) const;

 protected:
  struct Found {
    UnitPlan choice{};
    std::optional<double> gap{};
    int64_t plans_tried = 0;
  };
  // Some plan meets the budget. A result that does not is replaced by the plan that needs least of it.
  virtual Found search(const PlanUnits& units, const PlanGoal& goal) const = 0;
};

// "enumeration", "knapsack", "greedy", "top_k", "evolution", "bayesian".
std::vector<std::string_view> plan_solver_names();
// ConfigError naming what there is for another name.
std::unique_ptr<PlanSolver> make_plan_solver(std::string_view name, const SearchSettings& settings = {});

}  // namespace mantissa
