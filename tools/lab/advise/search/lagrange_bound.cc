#include "tools/lab/advise/search/lagrange_bound.h"

#include <algorithm>

namespace mantissa {

LagrangeBound::LagrangeBound(const PlanUnits& units, const OpenCosts& open_costs, const PlanGoal& goal)
    : open_costs_(open_costs), steps_(units.size()), rest_(units.size() + 1, {0.0}) {
  const auto [limited, least, third] = goal.quantities();
  for (int u = 0; u < units.size(); ++u) {
    for (const uint64_t paid : open_costs.sets(u)) {
      auto& steps = steps_[u].emplace_back();
      for (int option = 0; option < units.options(u); ++option) {
        const OpenCosts::Step step = open_costs.step(u, option, paid);
        steps.push_back({quantity(step.cost, limited), quantity(step.cost, least), place(u + 1, step.paid)});
      }
    }
    rest_[u].resize(steps_[u].size());
  }
  // The bound is concave in lambda, and its slope is what the plan of the least value exceeds the limit by.
  const auto exceeds = [&](double lambda) {
    const UnitPlan plan = minimise(lambda);
    const PlanTotals totals = units.evaluate(plan);
    if (!goal.is_met(totals)) return true;
    if (plan_.empty() || rank(goal, totals) < rank(goal, units.evaluate(plan_))) plan_ = plan;
    return false;
  };
  double low = 0, high = 0;
  if (exceeds(0)) {
    high = 1e-30;  // seconds, bytes and nats are many orders of magnitude apart
    while (high < 1e60 && exceeds(high)) {
      low = high;
      high *= 16;
    }
    for (int i = 0; i < 60; ++i) {
      const double middle = 0.5 * (low + high);
      (exceeds(middle) ? low : high) = middle;
    }
  }
  lambda_ = high < 1e60 ? high : 0;  // any is valid, 0 where the budget cannot be met
  budget_value_ = lambda_ * goal.tolerated();
  minimise(lambda_);
}

UnitPlan LagrangeBound::minimise(double lambda) {
  const auto value = [&](size_t unit, const Step& step) {
    return step.least + lambda * step.limited + rest_[unit + 1][step.next];
  };
  for (size_t u = steps_.size(); u-- > 0;) {
    for (size_t s = 0; s < steps_[u].size(); ++s) {
      rest_[u][s] = value(u, steps_[u][s].front());
      for (const Step& step : steps_[u][s]) rest_[u][s] = std::min(rest_[u][s], value(u, step));
    }
  }
  UnitPlan plan;
  int set = 0;
  for (size_t u = 0; u < steps_.size(); ++u) {
    const auto& steps = steps_[u][set];
    const auto step = std::ranges::min_element(steps, {}, [&](const Step& step) { return value(u, step); });
    plan.push_back(static_cast<int>(step - steps.begin()));
    set = step->next;
  }
  return plan;
}

int LagrangeBound::place(int unit, uint64_t paid) const {
  const auto& sets = open_costs_.sets(unit);
  return static_cast<int>(std::ranges::lower_bound(sets, paid) - sets.begin());
}

double LagrangeBound::least(double limited_sum, double least_sum, int unit, uint64_t paid) const {
  const double value = least_sum + lambda_ * limited_sum + rest_[unit][place(unit, paid)];
  return value - budget_value_ - 1e-12 * (value + budget_value_);
}

}  // namespace mantissa
