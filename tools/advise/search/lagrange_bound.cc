#include "tools/advise/search/lagrange_bound.h"

#include <algorithm>
#include <cmath>

namespace mantissa {
namespace {

struct Amount {
  double limited = 0;
  double least = 0;
  double value(double lambda) const { return least + lambda * limited; }
};
using Amounts = std::vector<std::vector<Amount>>;  // by unit and option, with their parts of shared costs

Amounts amounts_of(const PlanUnits& units, const PlanGoal& goal) {
  const auto [limited, least, third] = goal.quantities();
  Amounts amounts(units.size());
  for (int u = 0; u < units.size(); ++u) {
    for (const PlanTotals& option : units.units()[u].options) {
      amounts[u].push_back({quantity(option, limited), quantity(option, least)});
    }
  }
  for (const UnitSharedCost& shared : units.shared_costs()) {
    int payers = 0, last = -1;
    for (const PlanChoice& payer : shared.payers) {
      payers += payer.decision != last;
      last = payer.decision;
    }
    for (const auto& [unit, option] : shared.payers) {
      amounts[unit][option].limited += quantity(shared.cost, limited) / payers;
      amounts[unit][option].least += quantity(shared.cost, least) / payers;
    }
  }
  return amounts;
}

UnitPlan least_values(const Amounts& amounts, double lambda) {
  UnitPlan plan;
  for (const auto& options : amounts) {
    const auto by_value = [&](const Amount& a, const Amount& b) { return a.value(lambda) < b.value(lambda); };
    plan.push_back(static_cast<int>(std::ranges::min_element(options, by_value) - options.begin()));
  }
  return plan;
}

}  // namespace

LagrangeBound::LagrangeBound(const PlanUnits& units, const PlanGoal& goal) {
  const Amounts amounts = amounts_of(units, goal);
  // The bound is concave in lambda, and its slope is what the plan of the least values exceeds the limit by.
  const auto exceeds = [&](double lambda) {
    const UnitPlan plan = least_values(amounts, lambda);
    const PlanTotals totals = units.evaluate(plan);
    if (goal.is_met(totals) && (plan_.empty() || rank(goal, totals) < rank(goal, units.evaluate(plan_)))) plan_ = plan;
    double limited = 0;
    for (int u = 0; u < units.size(); ++u) limited += amounts[u][plan[u]].limited;
    return limited > goal.limit;
  };
  double low = 0, high = 0;
  if (exceeds(0)) {
    high = 1e-30;  // seconds, bytes and nats are many orders of magnitude apart
    while (high < 1e60 && exceeds(high)) {
      low = high;
      high *= 4;
    }
    for (int i = 0; i < 60; ++i) {
      const double middle = 0.5 * (low + high);
      (exceeds(middle) ? low : high) = middle;
    }
  }
  const double lambda = high < 1e60 ? high : 0;  // any is valid: the second where the budget cannot be met by parts
  budget_value_ = lambda * goal.tolerated();
  values_.resize(units.size());
  rest_.assign(units.size() + 1, 0);
  for (int u = units.size() - 1; u >= 0; --u) {
    for (const Amount& amount : amounts[u]) values_[u].push_back(amount.value(lambda));
    rest_[u] = rest_[u + 1] + std::ranges::min(values_[u]);
  }
}

double LagrangeBound::least(double value, int unit) const {
  const double rounding = 1e-12 * (value + rest_[unit] + budget_value_);
  return value + rest_[unit] - budget_value_ - rounding;
}

}  // namespace mantissa
