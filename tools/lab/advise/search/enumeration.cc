// Enumeration: tries every plan, as the reference for the other solvers.

#include <fmt/core.h>

#include <tuple>

#include "core/base/error.h"
#include "tools/lab/advise/search/solver.h"

namespace mantissa {

FoundPlan enumerate(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  int64_t plans = 1;
  for (const PlanDecision& decision : problem) {
    plans *= std::ssize(decision.options);
    if (plans > settings.most_plans) {
      throw ConfigError(fmt::format(
          "[plan] {} decisions have more than {} plans together, too many to try them all; use the knapsack",
          problem.size(), settings.most_plans));
    }
  }
  FoundPlan best{.plan = Plan(problem.size(), 0), .gap = 0.0};
  PlanRank best_rank = rank(goal, evaluate(problem, best.plan));
  Plan plan = best.plan;
  for (int64_t i = 1; i < plans; ++i) {
    // The last decision changes first.
    for (size_t d = plan.size(); d-- > 0 && ++plan[d] == std::ssize(problem[d].options);) plan[d] = 0;
    const PlanRank plan_rank = rank(goal, evaluate(problem, plan));
    if (plan_rank < best_rank) std::tie(best.plan, best_rank) = std::tie(plan, plan_rank);
  }
  return best;
}

}  // namespace mantissa
