#include "tools/lab/advise/search/plan_problem.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/base/error.h"

namespace mantissa {
namespace {

void check_number(std::string_view owner, std::string_view what, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw ConfigError(fmt::format(
      "[plan] {} of {} must be a finite number from 0 on, got {}; measure it again, or leave the option out", what,
      owner, value));
}

void check_decision(const PlanDecision& decision) {
  if (decision.options.empty()) {
    throw ConfigError(fmt::format("[plan] {} must have at least one option, got none", decision.name));
  }
  std::set<std::string_view> names;
  for (const PlanOption& option : decision.options) {
    const std::string owner = fmt::format("{} in {}", decision.name, option.name);
    if (!names.insert(option.name).second) {
      throw ConfigError(
          fmt::format("[plan] {} has the option {} twice; give options different names", decision.name, option.name));
    }
    check_number(owner, "the seconds", option.seconds);
    check_number(owner, "the bytes", option.bytes);
    check_number(owner, "the damage", option.damage);
    check_number(owner, "the damage's standard error", option.damage_error);
  }
}

void check_place(const PlanProblem& problem, std::string_view owner, int decision) {
  if (decision >= 0 && decision < static_cast<int>(problem.decisions.size())) return;
  throw ConfigError(fmt::format("[plan] {} names decision {}, but there are {}, counted from 0", owner, decision,
                                problem.decisions.size()));
}

void check_group(const PlanProblem& problem, const std::vector<int>& group) {
  for (const int member : group) check_place(problem, "a group", member);
  const auto same_name = [](const PlanOption& a, const PlanOption& b) { return a.name == b.name; };
  for (const int member : group) {
    const PlanDecision& first = problem.decisions[group.front()];
    const PlanDecision& other = problem.decisions[member];
    if (!std::ranges::equal(first.options, other.options, same_name)) {
      throw ConfigError(
          fmt::format("[plan] {} and {} are a group and must have options of the same names in the same "
                      "order; list for both what both can take",
                      first.name, other.name));
    }
  }
}

void check_shared_cost(const PlanProblem& problem, const PlanSharedCost& cost) {
  check_number(cost.name, "the seconds", cost.seconds);
  check_number(cost.name, "the bytes", cost.bytes);
  for (const auto& [decision, option] : cost.payers) {
    check_place(problem, cost.name, decision);
    const PlanDecision& payer = problem.decisions[decision];
    if (option < 0 || option >= static_cast<int>(payer.options.size())) {
      throw ConfigError(fmt::format("[plan] {} names option {} of {}, which has {}, counted from 0", cost.name, option,
                                    payer.name, payer.options.size()));
    }
  }
}

void check_plan(const PlanProblem& problem, const Plan& plan) {
  if (plan.size() != problem.decisions.size()) {
    throw ConfigError(fmt::format("[plan] a plan must have an option for each of {} decisions, got {}",
                                  problem.decisions.size(), plan.size()));
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    const PlanDecision& decision = problem.decisions[i];
    if (plan[i] < 0 || plan[i] >= static_cast<int>(decision.options.size())) {
      throw ConfigError(fmt::format("[plan] {} has {} options, counted from 0; the plan takes {}", decision.name,
                                    decision.options.size(), plan[i]));
    }
  }
  for (const std::vector<int>& group : problem.groups) {
    for (const int member : group) {
      if (plan[member] == plan[group.front()]) continue;
      throw ConfigError(fmt::format("[plan] {} and {} must take the same option, the plan has {} and {}",
                                    problem.decisions[group.front()].name, problem.decisions[member].name,
                                    plan[group.front()], plan[member]));
    }
  }
}

// Places of things with a name, in the order of names.
template <typename T>
std::vector<int> by_name(const std::vector<T>& things) {
  std::vector<int> order(things.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int a, int b) { return things[a].name < things[b].name; });
  return order;
}

}  // namespace

PlanTotals& PlanTotals::operator+=(const PlanTotals& other) {
  seconds += other.seconds;
  bytes += other.bytes;
  damage += other.damage;
  damage_variance += other.damage_variance;
  return *this;
}

double PlanTotals::damage_error() const { return std::sqrt(damage_variance); }

PlanTotals totals_of(const PlanOption& option) {
  return {option.seconds, option.bytes, option.damage, option.damage_error * option.damage_error};
}

void check_problem(const PlanProblem& problem) {
  if (problem.decisions.empty()) throw ConfigError("[plan] there must be at least one decision, got none");
  std::set<std::string_view> names;
  for (const PlanDecision& decision : problem.decisions) {
    if (!names.insert(decision.name).second) {
      throw ConfigError(fmt::format("[plan] there are two decisions {}; give them different names", decision.name));
    }
    check_decision(decision);
  }
  for (const std::vector<int>& group : problem.groups) check_group(problem, group);
  names.clear();
  for (const PlanSharedCost& cost : problem.shared_costs) {
    if (!names.insert(cost.name).second) {
      throw ConfigError(fmt::format("[plan] there are two shared costs {}; give them different names", cost.name));
    }
    check_shared_cost(problem, cost);
  }
}

PlanTotals evaluate(const PlanProblem& problem, const Plan& plan) {
  check_plan(problem, plan);
  PlanTotals totals;
  for (const int i : by_name(problem.decisions)) totals += totals_of(problem.decisions[i].options[plan[i]]);
  for (const int i : by_name(problem.shared_costs)) {
    const PlanSharedCost& cost = problem.shared_costs[i];
    const auto chosen = [&](const PlanChoice& payer) { return plan[payer.decision] == payer.option; };
    if (std::ranges::any_of(cost.payers, chosen)) totals += {.seconds = cost.seconds, .bytes = cost.bytes};
  }
  return totals;
}

double quantity(const PlanTotals& totals, PlanQuantity what) {
  switch (what) {
    case PlanQuantity::kSeconds:
      return totals.seconds;
    case PlanQuantity::kBytes:
      return totals.bytes;
    case PlanQuantity::kDamage:
      return totals.damage;
  }
  return 0;
}

std::array<PlanQuantity, 3> PlanGoal::quantities() const {
  using enum PlanQuantity;
  switch (budget) {
    case Budget::kTime:
      return {kSeconds, kDamage, kBytes};
    case Budget::kMemory:
      return {kBytes, kDamage, kSeconds};
    case Budget::kLoss:
      return {kDamage, kSeconds, kBytes};
  }
  return {};
}

void check_goal(const PlanGoal& goal) {
  if (std::isfinite(goal.limit) && goal.limit >= 0) return;
  throw ConfigError(fmt::format(
      "[plan] a budget must be a finite number from 0 on, got {}; give seconds, bytes or nats", goal.limit));
}

std::array<double, 4> rank(const PlanGoal& goal, const PlanTotals& totals) {
  const auto [limited, least, third] = goal.quantities();
  const double excess = goal.is_met(totals) ? 0.0 : quantity(totals, limited) - goal.limit;
  return {excess, quantity(totals, least), quantity(totals, limited), quantity(totals, third)};
}

std::string to_text(PlanQuantity what, double value) {
  switch (what) {
    case PlanQuantity::kSeconds:
      return fmt::format("{:.3g} ms", value * 1e3);
    case PlanQuantity::kBytes:
      return fmt::format("{:.3g} MiB", value / (1024.0 * 1024.0));
    case PlanQuantity::kDamage:
      return fmt::format("{:.2g} nats", value);
  }
  return "";
}

}  // namespace mantissa
