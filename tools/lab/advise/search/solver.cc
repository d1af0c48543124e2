#include "tools/lab/advise/search/solver.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <ranges>
#include <tuple>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr std::pair<std::string_view, Solver*> kSolvers[] = {{"enumeration", enumerate},
                                                             {"knapsack", knapsack},
                                                             {"greedy", greedy},
                                                             {"top_k", top_k},
                                                             {"evolution", evolution},
                                                             {"bayesian", bayesian},
                                                             {"reinforcement", reinforcement}};

// Gain per cost; moves without a cost come first, by their gain. Gains within the rounding of sums are none.
using Score = std::pair<bool, double>;
constexpr Score kNoMove{false, 0.0};

Score score(double gain, double cost, double total) {
  if (gain <= 1e-12 * total) return kNoMove;
  return {cost <= 0, cost <= 0 ? gain : gain / cost};
}

PlanTotals moved(PlanTotals totals, const PlanOption& from, const PlanOption& to) {
  totals.seconds += to.seconds - from.seconds;
  totals.bytes += to.bytes - from.bytes;
  totals.damage += to.damage - from.damage;
  totals.joules += to.joules - from.joules;
  return totals;
}

// ---- Reasons.

class Reasons {
 public:
  Reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan)
      : problem_(problem), goal_(goal), plan_(plan), totals_(evaluate(problem, plan)) {
    exact_cost_ = cost_of(evaluate(problem, least_plan(problem, PlanQuantity::kDamage)));
  }

  std::string reason_of(size_t decision) const {
    const int kept = least_option(problem_[decision], PlanQuantity::kDamage);
    return plan_[decision] == kept ? kept_reason(decision) : lowered_reason(decision, kept);
  }

 private:
  double cost_of(const PlanTotals& totals) const { return quantity(totals, goal_.cost()); }

  PlanTotals with(size_t decision, int option) const {
    Plan other = plan_;
    other[decision] = option;
    return evaluate(problem_, other);
  }

  // Names the alternative that saves most for its damage.
  std::string kept_reason(size_t decision) const {
    const auto& options = problem_[decision].options;
    int best = -1;
    double best_ratio = 0, best_saved = 0;
    for (int option = 0; option < std::ssize(options); ++option) {
      const PlanTotals other = with(decision, option);
      const double saved = cost_of(totals_) - cost_of(other);
      const double ratio = saved / std::max(other.damage - totals_.damage, std::numeric_limits<double>::min());
      if (saved > 0 && ratio > best_ratio) std::tie(best, best_ratio, best_saved) = std::tuple(option, ratio, saved);
    }
    const std::string kept = "kept " + options[plan_[decision]].name;
    if (best < 0) {
      return fmt::format("{}: nothing here saves {}", kept, name(goal_.cost()));
    }
    return fmt::format("{}: {} would cost {} for {}", kept, options[best].name,
                       damage_change(options[plan_[decision]], options[best]), to_text(goal_.cost(), best_saved));
  }

  std::string lowered_reason(size_t decision, int kept) const {
    const PlanOption &from = problem_[decision].options[kept], &to = problem_[decision].options[plan_[decision]];
    const double saved = cost_of(with(decision, kept)) - cost_of(totals_);
    return fmt::format("{}: {} {} ({:.1f} %) against {}, costs {}; {}", to.name, saved >= 0 ? "saves" : "adds",
                       to_text(goal_.cost(), std::abs(saved)),
                       exact_cost_ > 0 ? 100 * std::abs(saved) / exact_cost_ : 0.0, from.name, damage_change(from, to),
                       next_best(decision));
  }

  // With the standard error of the difference, if there is one.
  static std::string damage_change(const PlanOption& from, const PlanOption& to) {
    const double error = std::hypot(from.damage_error, to.damage_error);
    const std::string text = to_text(PlanQuantity::kDamage, to.damage - from.damage);
    return error > 0.0 ? fmt::format("{} (+-{:.1g})", text, error) : text;
  }

  std::string next_best(size_t decision) const {
    const auto& options = problem_[decision].options;
    const auto rank_of = [&](int option) { return rank(goal_, with(decision, option)); };
    int best = plan_[decision] == 0 ? 1 : 0;
    for (int option = best + 1; option < std::ssize(options); ++option) {
      if (option != plan_[decision] && rank_of(option) < rank_of(best)) best = option;
    }
    const PlanTotals other = with(decision, best);
    const PlanQuantity limited = goal_.budget;
    if (goal_.is_met(totals_) && !goal_.is_met(other)) {
      return fmt::format("{} instead would exceed the budget by {}", options[best].name,
                         to_text(limited, quantity(other, limited) - goal_.limit));
    }
    const auto change = [&](PlanQuantity what) {
      const double difference = quantity(other, what) - quantity(totals_, what);
      return (difference < 0 ? "-" : "+") + to_text(what, std::abs(difference));
    };
    return fmt::format("{} instead: {}, {}", options[best].name, change(goal_.cost()), change(PlanQuantity::kDamage));
  }

  const PlanProblem& problem_;
  const PlanGoal goal_;
  const Plan& plan_;
  const PlanTotals totals_;
  double exact_cost_ = 0;
};

}  // namespace

std::vector<std::string_view> solver_names() {
  const auto names = kSolvers | std::views::keys;
  return {names.begin(), names.end()};
}

SearchResult solve(std::string_view solver, const PlanProblem& problem, const PlanGoal& goal,
                   const SearchSettings& settings) {
  const auto entry = std::ranges::find(kSolvers, solver, [](const auto& one) { return one.first; });
  require<ConfigError>(entry != std::end(kSolvers), "[plan] a solver must be one of {}, got {}",
                       fmt::join(solver_names(), ", "), solver);
  check_problem(problem);
  check_goal(goal);
  std::vector<size_t> order(problem.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return problem[i].name; });
  PlanProblem sorted;
  for (const size_t i : order) sorted.push_back(problem[i]);

  const Plan nearest = nearest_plan(sorted, goal);
  SearchResult result{.plan = Plan(order.size()), .meets_budget = goal.is_met(evaluate(sorted, nearest))};
  Plan found = result.meets_budget ? entry->second(sorted, goal, settings) : nearest;
  if (!goal.is_met(evaluate(sorted, found))) found = nearest;
  result.totals = evaluate(sorted, found);
  for (size_t i = 0; i < order.size(); ++i) result.plan[order[i]] = found[i];
  return result;
}

int least_option(const PlanDecision& decision, PlanQuantity what) {
  const auto amount = [&](const PlanOption& option) { return quantity(option.totals(), what); };
  return static_cast<int>(std::ranges::min_element(decision.options, {}, amount) - decision.options.begin());
}

Plan least_plan(const PlanProblem& problem, PlanQuantity what) {
  Plan plan;
  for (const PlanDecision& decision : problem) plan.push_back(least_option(decision, what));
  return plan;
}

Plan nearest_plan(const PlanProblem& problem, const PlanGoal& goal) {
  const auto key = [&](const PlanOption& option) { return rank({.budget = goal.budget, .limit = 0}, option.totals()); };
  Plan plan;
  for (const auto& [name, options] : problem) {
    plan.push_back(static_cast<int>(std::ranges::min_element(options, {}, key) - options.begin()));
  }
  return plan;
}

std::vector<Plan> uniform_plans(const PlanProblem& problem) {
  const auto count = [](const PlanDecision& decision) { return std::ssize(decision.options); };
  std::vector<Plan> plans(count(std::ranges::max(problem, {}, count)));
  for (size_t option = 0; option < plans.size(); ++option) {
    for (const PlanDecision& decision : problem) {
      plans[option].push_back(static_cast<int>(std::min(option, decision.options.size() - 1)));
    }
  }
  return plans;
}

std::vector<double> least_of_rest(const PlanProblem& problem, const std::function<double(const PlanOption&)>& part) {
  std::vector<double> rest(problem.size() + 1, 0.0);
  for (size_t i = problem.size(); i-- > 0;) {
    rest[i] = rest[i + 1] + std::ranges::min(problem[i].options | std::views::transform(part));
  }
  return rest;
}

// Tries every plan, as the reference for the other solvers.
Plan enumerate(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  int64_t plans = 1;
  for (const PlanDecision& decision : problem) {
    plans *= std::ssize(decision.options);
    require<ConfigError>(
        plans <= settings.most_plans,
        "[plan] {} decisions have more than {} plans together, too many to try them all; use the knapsack",
        problem.size(), settings.most_plans);
  }
  Plan plan(problem.size(), 0), best = plan;
  PlanRank best_rank = rank(goal, evaluate(problem, best));
  for (int64_t i = 1; i < plans; ++i) {
    // The last decision changes first.
    for (size_t d = plan.size(); d-- > 0 && ++plan[d] == std::ssize(problem[d].options);) plan[d] = 0;
    const PlanRank plan_rank = rank(goal, evaluate(problem, plan));
    if (plan_rank < best_rank) std::tie(best, best_rank) = std::tie(plan, plan_rank);
  }
  return best;
}

// The k decisions that can do most damage keep their least damaging option, the others take a cheap one, as layers are
// often chosen by hand. Costs play no part in which decisions are kept.
//
// Tries every k from 0 to the number of decisions, and as the cheap option first the least costly one, then each place
// in the list of options, for the decisions that have it.
Plan top_k(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings&) {
  const Plan exact = least_plan(problem, PlanQuantity::kDamage), cheap = least_plan(problem, goal.cost());
  std::vector<size_t> order(problem.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto most_damage = [&](size_t i) {
    return std::ranges::max(problem[i].options, {}, &PlanOption::damage).damage;
  };
  std::ranges::stable_sort(order, std::greater(), most_damage);
  std::vector<Plan> plans = {exact};
  std::vector<Plan> lows = uniform_plans(problem);
  for (size_t low = 0; low < lows.size(); ++low) {
    for (size_t i = 0; i < problem.size(); ++i) {
      if (low >= problem[i].options.size()) lows[low][i] = cheap[i];
    }
  }
  lows.insert(lows.begin(), cheap);
  for (const Plan& low : lows) {
    plans.push_back(low);
    for (const size_t i : order) {
      plans.push_back(plans.back());
      plans.back()[i] = exact[i];
    }
  }
  return std::ranges::min(plans, {}, [&](const Plan& plan) { return rank(goal, evaluate(problem, plan)); });
}

// Gain per cost, one decision at a time (Dantzig, "Discrete-Variable Extremum Problems", Operations Research
// 5(2), 1957).
//
// Starts with the least of the minimized quantity, ignoring the budget. Until the budget is met, it makes the move with
// the least cost in this quantity for its saving of the limited quantity; savings beyond the need do not count. Then it
// makes moves within the budget, the most efficient first, until none is left.
Plan greedy(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings&) {
  const PlanQuantity limited = goal.budget, least = goal.quantities()[1];
  Plan plan = least_plan(problem, least), met;
  PlanTotals totals = evaluate(problem, plan);
  const auto score_of = [&](const PlanTotals& after) {
    const double saved = quantity(totals, limited) - quantity(after, limited);
    const double gain = quantity(totals, least) - quantity(after, least);
    if (!goal.is_met(totals)) {
      const double needed = quantity(totals, limited) - goal.limit;
      if (saved <= 1e-12 * quantity(totals, limited)) return kNoMove;
      return score(std::min(saved, needed), -gain, 0.0);
    }
    return goal.is_met(after) ? score(gain, -saved, quantity(totals, least)) : kNoMove;
  };
  while (true) {
    if (goal.is_met(totals)) met = plan;
    Score best = kNoMove;
    size_t best_decision = 0;
    int best_option = 0;
    for (size_t i = 0; i < problem.size(); ++i) {
      const auto& options = problem[i].options;
      for (int option = 0; option < std::ssize(options); ++option) {
        const Score found = score_of(moved(totals, options[plan[i]], options[option]));
        if (found > best) std::tie(best, best_decision, best_option) = std::tuple(found, i, option);
      }
    }
    if (best == kNoMove) break;
    plan[best_decision] = best_option;
    totals = evaluate(problem, plan);
    if (!met.empty() && !goal.is_met(totals)) break;  // rounding
  }
  return met.empty() ? plan : met;
}

std::vector<std::string> plan_reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan) {
  const Reasons reasons(problem, goal, plan);
  std::vector<std::string> lines;
  for (size_t i = 0; i < problem.size(); ++i) lines.push_back(reasons.reason_of(i));
  return lines;
}

}  // namespace mantissa
