#include "tools/lab/advise/search/solver.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr std::pair<std::string_view, Solver*> kSolvers[] = {{"enumeration", enumerate},
                                                             {"knapsack", knapsack},
                                                             {"greedy", greedy},
                                                             {"top_k", top_k},
                                                             {"evolution", evolution},
                                                             {"bayesian", bayesian},
                                                             {"reinforcement", reinforcement}};

}  // namespace

std::vector<std::string_view> solver_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, solver] : kSolvers) names.push_back(name);
  return names;
}

SearchResult solve(std::string_view solver, const PlanProblem& problem, const PlanGoal& goal,
                   const SearchSettings& settings) {
  const auto entry = std::ranges::find(kSolvers, solver, [](const auto& one) { return one.first; });
  if (entry == std::end(kSolvers)) {
    throw ConfigError(
        fmt::format("[plan] a solver must be one of {}, got {}", fmt::join(solver_names(), ", "), solver));
  }
  check_problem(problem);
  check_goal(goal);
  std::vector<size_t> order(problem.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return problem[i].name; });
  PlanProblem sorted;
  for (const size_t i : order) sorted.push_back(problem[i]);

  const Plan nearest = nearest_plan(sorted, goal);
  SearchResult result{.meets_budget = goal.is_met(evaluate(sorted, nearest))};
  FoundPlan found{.plan = nearest};
  if (result.meets_budget) found = entry->second(sorted, goal, settings);
  if (!goal.is_met(evaluate(sorted, found.plan))) found.plan = nearest;
  result.totals = evaluate(sorted, found.plan);
  result.gap = found.gap;
  result.plan.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) result.plan[order[i]] = found.plan[i];
  return result;
}

int least_option(const PlanDecision& decision, PlanQuantity what) {
  const auto amount = [&](const PlanOption& option) { return quantity(option.totals(), what); };
  return static_cast<int>(std::ranges::min_element(decision.options, {}, amount) - decision.options.begin());
}

Plan nearest_plan(const PlanProblem& problem, const PlanGoal& goal) {
  const auto key = [&](const PlanOption& option) { return rank({.budget = goal.budget, .limit = 0}, option.totals()); };
  Plan plan;
  for (const auto& [name, options] : problem) {
    plan.push_back(static_cast<int>(std::ranges::min_element(options, {}, key) - options.begin()));
  }
  return plan;
}

Plan same_option(const PlanProblem& problem, int option) {
  Plan plan;
  for (const PlanDecision& decision : problem) {
    plan.push_back(std::min(option, static_cast<int>(decision.options.size()) - 1));
  }
  return plan;
}

int most_options(const PlanProblem& problem) {
  const auto options = [](const PlanDecision& decision) { return decision.options.size(); };
  return static_cast<int>(std::ranges::max(problem, {}, options).options.size());
}

}  // namespace mantissa
