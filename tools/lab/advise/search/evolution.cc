// Evolution, (mu + lambda): the 64 best of parents and children are the next parents (Schwefel, "Numerical Optimization
// of Computer Models", 1981). A child takes each option from one of two parents; then each decision takes a random
// option with probability 1 / decisions. Plans that exceed the budget are repaired. The first parents are the uniform
// plans and random ones.

#include <iterator>
#include <numeric>
#include <set>

#include "tools/lab/advise/search/random_search.h"

namespace mantissa {

Plan random_plan(const PlanProblem& problem, Draws& draws) {
  Plan plan;
  for (const PlanDecision& decision : problem) plan.push_back(draws.below(decision.options.size()));
  return plan;
}

void repair_budget(const PlanProblem& problem, const PlanGoal& goal, Plan& plan, Draws& draws) {
  std::vector<size_t> order(problem.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t left = order.size(); left > 0 && !goal.is_met(evaluate(problem, plan)); --left) {
    std::swap(order[draws.below(left)], order[left - 1]);
    const size_t decision = order[left - 1];
    plan[decision] = least_option(problem[decision], goal.quantities()[0]);
  }
}

FoundPlan evolution(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  constexpr size_t kParents = 64, kChildren = 64;
  Draws draws(settings.seed);
  std::set<std::pair<PlanRank, Plan>> plans;  // no plan is in it twice
  const auto insert = [&](Plan plan) {
    repair_budget(problem, goal, plan, draws);
    const PlanRank plan_rank = rank(goal, evaluate(problem, plan));
    plans.insert({plan_rank, std::move(plan)});
  };
  const auto select = [&] {
    while (plans.size() > kParents) plans.erase(std::prev(plans.end()));
  };
  const auto parent = [&]() -> const Plan& { return std::next(plans.begin(), draws.below(plans.size()))->second; };

  for (int option = 0; option < most_options(problem); ++option) insert(same_option(problem, option));
  for (size_t i = 0; i < kParents; ++i) insert(random_plan(problem, draws));
  select();
  for (int generation = 0; generation < settings.generations; ++generation) {
    std::vector<Plan> children;
    for (size_t i = 0; i < kChildren; ++i) {
      const Plan &a = parent(), &b = parent();
      Plan& child = children.emplace_back();
      for (size_t d = 0; d < problem.size(); ++d) {
        child.push_back((draws.word() & 1) != 0 ? a[d] : b[d]);
        if (draws.below(problem.size()) == 0) child.back() = draws.below(problem[d].options.size());
      }
    }
    for (Plan& child : children) insert(std::move(child));
    select();
  }
  return {.plan = plans.begin()->second};
}

}  // namespace mantissa
