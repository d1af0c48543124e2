// Random problems with exact sums: all numbers are multiples of 2^-10. Sums in different orders thus agree
// bit for bit, and plans can meet a budget exactly.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <ranges>
#include <tuple>
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

// Damages spread as measurements spread them: each decision's are multiplied by 1, 0.1, ..., or 1e-8; or only one
// decision does any damage.
enum class Damages : uint8_t { kOverDecades, kInOneDecision };
inline PlanProblem with_damages(PlanProblem problem, Damages damages, uint64_t seed) {
  Numbers numbers(seed);
  const int place = numbers.below(static_cast<int>(problem.size()));
  for (int i = 0; i < std::ssize(problem); ++i) {
    const double factor = damages == Damages::kOverDecades ? std::pow(10.0, -numbers.below(9)) : i == place ? 1.0 : 0.0;
    for (PlanOption& option : problem[static_cast<size_t>(i)].options) option.damage *= factor;
  }
  return problem;
}

// The best of all plans, by trying each.
inline SearchResult enumerated(const PlanProblem& problem, const PlanGoal& goal) {
  Plan plan(problem.size(), 0);
  SearchResult best{.plan = plan};
  PlanRank best_rank = rank(goal, evaluate(problem, plan));
  for (size_t i = problem.size(); i > 0;) {
    // The last decision changes first.
    for (i = problem.size(); i > 0 && ++plan[i - 1] == std::ssize(problem[i - 1].options); --i) plan[i - 1] = 0;
    const PlanRank found = rank(goal, evaluate(problem, plan));
    if (found < best_rank) std::tie(best.plan, best_rank) = std::tie(plan, found);
  }
  best.totals = evaluate(problem, best.plan);
  best.meets_budget = goal.is_met(best.totals);
  return best;
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
