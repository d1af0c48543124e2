#include "tools/lab/advise/search/enumeration.h"

#include <fmt/core.h>

#include <utility>

#include "core/base/error.h"

namespace mantissa {
namespace {

// The plan that follows, the last unit changing first; false behind the last plan.
bool advance(const PlanUnits& units, UnitPlan& plan) {
  for (int u = units.size() - 1; u >= 0; --u) {
    if (++plan[u] < units.options(u)) return true;
    plan[u] = 0;
  }
  return false;
}

}  // namespace

PlanSolver::Found Enumeration::search(const PlanUnits& units, const PlanGoal& goal) const {
  int64_t plans = 1;
  for (int u = 0; u < units.size(); ++u) {
    plans *= units.options(u);
    if (plans > most_plans_) {
      throw ConfigError(
          fmt::format("[plan] {} decisions have more than {} plans together, too many to try them all; use "
                      "the knapsack",
                      units.size(), most_plans_));
    }
  }
  UnitPlan plan(units.size(), 0);
  UnitPlan best = plan;
  auto best_rank = rank(goal, units.evaluate(plan));
  while (advance(units, plan)) {
    const auto plan_rank = rank(goal, units.evaluate(plan));
    if (plan_rank < best_rank) std::tie(best, best_rank) = std::pair(plan, plan_rank);
  }
  return {.choice = std::move(best), .gap = 0.0, .plans_tried = plans};
}

}  // namespace mantissa
