// Bayesian search. For each decision, the better quarter of the tried plans gives a density l of its options, and the
// rest a density g. A density is the options' frequencies, plus another plan in which all are equally frequent.
// Candidates are drawn from l. The next to try has the largest l / g, and so the largest expected improvement.
//
// As a solver, the objective is the predicted minimized quantity. Plans beyond the budget are repaired; if they still
// exceed it, they count as worse than all others.

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "tools/lab/advise/search/random_search.h"

namespace mantissa {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kBetterShare = 0.25;
constexpr int kCandidates = 32;  // drawn for each evaluation
constexpr int kMostIdle = 100;   // draws without a new plan: the space is nearly exhausted

using Tried = std::pair<double, Plan>;
using Densities = std::vector<std::vector<double>>;  // by decision and option

Densities densities_of(const PlanProblem& problem, std::span<const Tried> tried) {
  Densities densities;
  for (size_t d = 0; d < problem.size(); ++d) {
    const size_t options = problem[d].options.size();
    std::vector<double>& counts = densities.emplace_back(options, 1.0 / static_cast<double>(options));
    for (const auto& [value, plan] : tried) counts[plan[d]] += 1.0;
    for (double& count : counts) count /= static_cast<double>(tried.size()) + 1.0;
  }
  return densities;
}

}  // namespace

ParzenResult parzen_search(const PlanProblem& problem, const std::function<double(const Plan&)>& objective,
                           const ParzenSettings& settings) {
  ParzenResult result;
  Draws draws(settings.seed);
  std::vector<Tried> tried;
  std::set<Plan> known;
  // The best untried candidate, or the best tried one if all were tried.
  const auto next_plan = [&] {
    std::ranges::stable_sort(tried, {}, &Tried::first);
    const auto better = static_cast<size_t>(std::ceil(kBetterShare * static_cast<double>(tried.size())));
    const Densities l = densities_of(problem, std::span(tried).first(better));
    const Densities g = densities_of(problem, std::span(tried).subspan(better));
    std::pair<bool, double> best_score{false, -kInfinity};
    Plan best(problem.size(), 0);
    for (int i = 0; i < kCandidates; ++i) {
      Plan plan;
      for (const std::vector<double>& density : l) plan.push_back(draws.option(density));
      settings.repair(plan, draws);
      double log_ratio = 0;
      for (size_t d = 0; d < plan.size(); ++d) log_ratio += std::log(l[d][plan[d]] / g[d][plan[d]]);
      const std::pair score{!known.contains(plan), log_ratio};
      if (score > best_score) std::tie(best_score, best) = std::pair(score, std::move(plan));
    }
    return best;
  };
  for (int drawn = 0, idle = 0; result.evaluations < settings.evaluations && idle < kMostIdle; ++drawn) {
    Plan plan;
    if (drawn < settings.random_plans) {
      plan = drawn < most_options(problem) ? same_option(problem, drawn) : random_plan(problem, draws);
      settings.repair(plan, draws);
    } else {
      plan = next_plan();
    }
    if (!known.insert(plan).second) {
      idle += drawn >= settings.random_plans;
      continue;
    }
    const double value = objective(plan), number = std::isnan(value) ? kInfinity : value;
    if (++result.evaluations == 1 || number < result.value) {
      result.plan = plan;
      result.value = number;
    }
    tried.emplace_back(number, std::move(plan));
    idle = 0;
  }
  return result;
}

FoundPlan bayesian(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  const auto objective = [&](const Plan& plan) {
    const PlanRank plan_rank = rank(goal, evaluate(problem, plan));
    return plan_rank[0] == 0 ? plan_rank[1] : kInfinity;
  };
  const auto repair = [&](Plan& plan, Draws& draws) { repair_budget(problem, goal, plan, draws); };
  return {.plan = parzen_search(problem, objective,
                                {.seed = settings.seed, .evaluations = settings.evaluations, .repair = repair})
                      .plan};
}

}  // namespace mantissa
