// Random problems with exact sums: all numbers are multiples of 2^-10. Solvers that add in different orders thus agree
// bit for bit, and plans can meet a budget exactly.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <ranges>
#include <utility>
#include <vector>

#include "tools/lab/advise/search/solver.h"

namespace mantissa::testing {

// No standard distribution, because those differ between libraries.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : engine_(seed) {}
  int below(int count) { return static_cast<int>(engine_() % static_cast<uint64_t>(count)); }
  double dyadic(int most) { return below(most + 1) * 0x1p-10; }

 private:
  std::mt19937_64 engine_;
};

// Decisions with 2 to 4 options: later options mostly cost less and do more damage.
inline PlanProblem random_problem(uint64_t seed, int decisions) {
  Numbers numbers(seed), energies(seed + 1'000'000);
  PlanProblem problem;
  for (int i = 0; i < decisions; ++i) {
    PlanDecision& decision = problem.emplace_back();
    decision.name = fmt::format("blocks.{}.linear", i);
    const int options = i < 3 ? 3 : 2 + numbers.below(3);
    const int size = 1 + numbers.below(8);
    const int sensitivity = 1 + numbers.below(8);
    for (int o = 0; o < options; ++o) {
      decision.options.push_back({.name = fmt::format("format{}", o),
                                  .seconds = numbers.dyadic(256) + size * (options - o) * 0.25,
                                  .bytes = numbers.dyadic(256) + size * (options - o) * 0.5,
                                  .damage = o == 0 ? 0.0 : numbers.dyadic(256) + sensitivity * o * o * 0.25,
                                  .damage_error = 0.125,
                                  .joules = energies.dyadic(512) + size * (options - o) * 0.125});
    }
  }
  return problem;
}

// Budgets from below the minimum to more than any plan needs, including some that plans meet exactly.
inline std::vector<PlanGoal> budgets_of(const PlanProblem& problem, uint64_t seed) {
  Numbers numbers(seed);
  std::vector<PlanGoal> goals;
  for (const PlanQuantity budget :
       {PlanQuantity::kSeconds, PlanQuantity::kBytes, PlanQuantity::kDamage, PlanQuantity::kJoules}) {
    PlanGoal goal{.budget = budget};
    const PlanQuantity limited = goal.budget;
    double least = 0, most = 0;
    for (const PlanDecision& decision : problem) {
      const auto amount = [&](const PlanOption& option) { return quantity(option.totals(), limited); };
      least += std::ranges::min(decision.options | std::views::transform(amount));
      most += std::ranges::max(decision.options | std::views::transform(amount));
    }
    for (const double part : {-0.25, 0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.5}) {
      goal.limit = std::max(0.0, least + part * (most - least));
      goals.push_back(goal);
    }
    // The need of a random plan, and slightly less.
    Plan plan;
    for (const PlanDecision& decision : problem) {
      plan.push_back(numbers.below(static_cast<int>(decision.options.size())));
    }
    goal.limit = quantity(evaluate(problem, plan), limited);
    goals.push_back(goal);
    goal.limit = std::max(0.0, goal.limit - 0x1p-10);
    goals.push_back(goal);
  }
  return goals;
}

// The distance of a plan that meets the budget from the enumerated optimum of the minimised quantity. It is a share of
// the optimum's distance from the plan that needs the least of the budget. nullopt if no plan meets it.
inline std::optional<double> gap_to_optimum(const PlanProblem& problem, const PlanGoal& goal, const PlanTotals& found) {
  const SearchResult best = solve("enumeration", problem, goal);
  if (!best.meets_budget) return std::nullopt;
  const SearchResult nearest = solve("knapsack", problem, {.budget = goal.budget, .limit = 0});
  const PlanQuantity least = goal.quantities()[1];
  const double excess = quantity(found, least) - quantity(best.totals, least);
  return excess == 0.0 ? 0.0 : excess / (quantity(nearest.totals, least) - quantity(best.totals, least));
}

// The same problem with decisions in another order. `place`: the new index of each decision.
inline PlanProblem shuffled(const PlanProblem& problem, uint64_t seed, std::vector<int>& place) {
  Numbers numbers(seed);
  std::vector<int> order(problem.size());
  std::iota(order.begin(), order.end(), 0);
  for (int left = static_cast<int>(order.size()); left > 1; --left) {
    std::swap(order[numbers.below(left)], order[left - 1]);
  }
  place.resize(order.size());
  PlanProblem result;
  for (size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<int>(i);
    result.push_back(problem[order[i]]);
  }
  return result;
}

}  // namespace mantissa::testing
