#include "tools/lab/advise/search/plan_solver.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "tools/lab/advise/search/bayesian.h"
#include "tools/lab/advise/search/enumeration.h"
#include "tools/lab/advise/search/evolution.h"
#include "tools/lab/advise/search/greedy.h"
#include "tools/lab/advise/search/knapsack.h"
#include "tools/lab/advise/search/open_costs.h"
#include "tools/lab/advise/search/pareto_labels.h"
#include "tools/lab/advise/search/top_k.h"

namespace mantissa {

SearchResult PlanSolver::solve(const PlanProblem& problem, const PlanGoal& goal) const {
  check_goal(goal);
  const PlanUnits units(problem);
  const UnitPlan nearest = least_budget_plan(units, OpenCosts(units), goal);
  SearchResult result{.meets_budget = goal.is_met(units.evaluate(nearest))};
  Found found{.choice = nearest};
  if (result.meets_budget) {
    found = search(units, goal);
    if (!goal.is_met(units.evaluate(found.choice))) found.choice = nearest;
  }
  result.plan = units.plan_of(found.choice);
  result.totals = evaluate(problem, result.plan);
  result.gap = found.gap;
  result.plans_tried = found.plans_tried;
  return result;
}

std::vector<std::string_view> plan_solver_names() {
  return {"enumeration", "knapsack", "greedy", "top_k", "evolution", "bayesian"};
}

std::unique_ptr<PlanSolver> make_plan_solver(std::string_view name, const SearchSettings& settings) {
  if (name == "enumeration") return std::make_unique<Enumeration>(settings);
  if (name == "knapsack") return std::make_unique<Knapsack>(settings);
  if (name == "greedy") return std::make_unique<Greedy>();
  if (name == "top_k") return std::make_unique<TopK>();
  if (name == "evolution") return std::make_unique<Evolution>(settings);
  if (name == "bayesian") return std::make_unique<Bayesian>(settings);
  throw ConfigError(
      fmt::format("[plan] a solver must be one of {}, got {}", fmt::join(plan_solver_names(), ", "), name));
}

}  // namespace mantissa
