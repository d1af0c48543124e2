// Top-k: the k decisions that can do most damage keep their least damaging option, the others take a cheap one, as
// layers are often chosen by hand. Costs play no part in which decisions are kept.
//
// Tries every k from 0 to the number of decisions, and as the cheap option first the least costly one, then each place
// in the list of options, for the decisions that have it.

#include <algorithm>
#include <numeric>

#include "tools/lab/advise/search/solver.h"

namespace mantissa {

FoundPlan top_k(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings&) {
  Plan exact;
  for (const PlanDecision& decision : problem) exact.push_back(least_option(decision, PlanQuantity::kDamage));
  std::vector<size_t> order(problem.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto most_damage = [&](size_t i) {
    return std::ranges::max(problem[i].options, {}, &PlanOption::damage).damage;
  };
  std::ranges::stable_sort(order, std::greater(), most_damage);

  FoundPlan found{.plan = exact};
  const auto try_plan = [&](const Plan& plan) {
    if (rank(goal, evaluate(problem, plan)) < rank(goal, evaluate(problem, found.plan))) found.plan = plan;
  };
  for (int low = -1; low < most_options(problem); ++low) {
    Plan plan;
    for (const PlanDecision& decision : problem) {
      const bool has_it = low >= 0 && low < std::ssize(decision.options);
      plan.push_back(has_it ? low : least_option(decision, goal.cost()));
    }
    try_plan(plan);
    for (const size_t i : order) {
      plan[i] = exact[i];
      try_plan(plan);
    }
  }
  return found;
}

}  // namespace mantissa
