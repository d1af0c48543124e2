#include "tools/lab/advise/plan/promotion.h"

#include <algorithm>
#include <limits>

namespace mantissa {
namespace {

// The decision and all that take the same option.
std::vector<int> together(const PlanProblem& problem, int decision) {
  for (const std::vector<int>& group : problem.groups) {
    if (std::find(group.begin(), group.end(), decision) != group.end()) return group;
  }
  return {decision};
}

// Of one step for one decision; nothing where there is none that is less damaging.
struct Step {
  Plan plan{};
  double gain = 0.0;  // of loss for each second; infinity where it costs none
};
std::optional<Step> best_step(const PlanProblem& problem, const Plan& plan, int decision) {
  const PlanTotals before = evaluate(problem, plan);
  const auto options = problem.decisions[static_cast<size_t>(decision)].options.size();
  std::optional<Step> best;
  for (size_t option = 0; option < options; ++option) {
    Plan other = plan;
    for (const int member : together(problem, decision)) other[static_cast<size_t>(member)] = static_cast<int>(option);
    const PlanTotals after = evaluate(problem, other);
    if (!(after.damage < before.damage)) continue;
    const double cost = after.seconds - before.seconds;
    const double gain = cost > 0.0 ? (before.damage - after.damage) / cost : std::numeric_limits<double>::infinity();
    if (!best || gain > best->gain) best = Step{.plan = std::move(other), .gain = gain};
  }
  return best;
}

}  // namespace

std::optional<Plan> promoted(const PlanProblem& problem, const Plan& plan) {
  const double target = evaluate(problem, plan).damage / 2.0;
  Plan now = plan;
  while (evaluate(problem, now).damage > target) {
    std::optional<Step> best;
    for (int decision = 0; decision < static_cast<int>(problem.decisions.size()); ++decision) {
      std::optional<Step> step = best_step(problem, now, decision);
      if (step && (!best || step->gain > best->gain)) best = std::move(step);
    }
    if (!best) break;
    now = std::move(best->plan);
  }
  if (now == plan) return std::nullopt;
  return now;
}

}  // namespace mantissa
