#include "tests/tools/lab/advise/search/random_problems.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <ranges>
#include <utility>

#include "tools/lab/advise/search/plan_solver.h"

namespace mantissa::testing {
namespace {

// Not a distribution of the standard library: those differ from library to library.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : engine_(seed) {}
  int below(int count) { return static_cast<int>(engine_() % static_cast<uint64_t>(count)); }
  double dyadic(int most) { return below(most + 1) * 0x1p-10; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace

PlanProblem random_problem(uint64_t seed, int decisions) {
  Numbers numbers(seed);
  PlanProblem problem;
  for (int i = 0; i < decisions; ++i) {
    PlanDecision decision{.name = fmt::format("blocks.{}.linear", i)};
    // Members of the group, the first three, have three options each.
    const int options = i < 3 ? 3 : 2 + numbers.below(3);
    const int size = 1 + numbers.below(8);
    const int sensitivity = 1 + numbers.below(8);
    for (int o = 0; o < options; ++o) {
      decision.options.push_back({.name = fmt::format("format{}", o),
                                  .seconds = numbers.dyadic(256) + size * (options - o) * 0.25,
                                  .bytes = numbers.dyadic(256) + size * (options - o) * 0.5,
                                  .damage = o == 0 ? 0.0 : numbers.dyadic(256) + sensitivity * o * o * 0.25,
                                  .damage_error = 0.125});
    }
    problem.decisions.push_back(std::move(decision));
  }
  if (decisions >= 3) problem.groups = {{0, 1, 2}};
  for (int i = 0; i + 2 < decisions; i += 2) {
    PlanSharedCost cost{
        .name = fmt::format("cast {}", i), .seconds = numbers.dyadic(1024), .bytes = numbers.dyadic(512)};
    const int payers = 2 + numbers.below(2);
    for (int p = i; p < std::min(i + payers, decisions); ++p) {
      cost.payers.push_back({p, static_cast<int>(problem.decisions[p].options.size()) - 1});
    }
    problem.shared_costs.push_back(std::move(cost));
  }
  return problem;
}

std::vector<PlanGoal> budgets_of(const PlanProblem& problem, uint64_t seed) {
  Numbers numbers(seed);
  std::vector<PlanGoal> goals;
  for (const Budget budget : {Budget::kTime, Budget::kMemory, Budget::kLoss}) {
    PlanGoal goal{.budget = budget};
    const PlanQuantity limited = goal.quantities()[0];
    double least = 0, most = 0;
    for (const PlanDecision& decision : problem.decisions) {
      const auto amount = [&](const PlanOption& option) { return quantity(totals_of(option), limited); };
      least += std::ranges::min(decision.options | std::views::transform(amount));
      most += std::ranges::max(decision.options | std::views::transform(amount));
    }
    for (const double part : {-0.25, 0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 1.5}) {
      goal.limit = std::max(0.0, least + part * (most - least));
      goals.push_back(goal);
    }
    // What a random plan needs, and the least bit less.
    Plan plan;
    for (const PlanDecision& decision : problem.decisions) {
      plan.push_back(numbers.below(static_cast<int>(decision.options.size())));
    }
    for (const auto& group : problem.groups) {
      for (const int member : group) plan[member] = plan[group.front()];
    }
    goal.limit = quantity(evaluate(problem, plan), limited);
    goals.push_back(goal);
    goal.limit = std::max(0.0, goal.limit - 0x1p-10);
    goals.push_back(goal);
  }
  return goals;
}

std::optional<double> gap_to_optimum(const PlanProblem& problem, const PlanGoal& goal, const PlanTotals& found) {
  const SearchResult best = make_plan_solver("enumeration")->solve(problem, goal);
  if (!best.meets_budget) return std::nullopt;
  const SearchResult nearest = make_plan_solver("knapsack")->solve(problem, {.budget = goal.budget, .limit = 0});
  const PlanQuantity least = goal.quantities()[1];
  const double excess = quantity(found, least) - quantity(best.totals, least);
  return excess == 0.0 ? 0.0 : excess / (quantity(nearest.totals, least) - quantity(best.totals, least));
}

PlanProblem shuffled(const PlanProblem& problem, uint64_t seed, std::vector<int>& place) {
  Numbers numbers(seed);
  const auto shuffle = [&](auto& things) {
    for (int left = static_cast<int>(things.size()); left > 1; --left) {
      std::swap(things[numbers.below(left)], things[left - 1]);
    }
  };
  std::vector<int> order(problem.decisions.size());
  std::iota(order.begin(), order.end(), 0);
  shuffle(order);
  place.resize(order.size());
  PlanProblem result;
  for (size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<int>(i);
    result.decisions.push_back(problem.decisions[order[i]]);
  }
  result.groups = problem.groups;
  for (auto& group : result.groups) {
    for (int& member : group) member = place[member];
    shuffle(group);
  }
  result.shared_costs = problem.shared_costs;
  for (auto& cost : result.shared_costs) {
    for (auto& payer : cost.payers) payer.decision = place[payer.decision];
    shuffle(cost.payers);
  }
  shuffle(result.shared_costs);
  return result;
}

}  // namespace mantissa::testing
