// Greedy: gain per cost, one decision at a time (Dantzig, "Discrete-Variable Extremum Problems", Operations Research
// 5(2), 1957).
//
// Starts with the least of the minimized quantity, ignoring the budget. Until the budget is met, it makes the move with
// the least cost in this quantity for its saving of the limited quantity; savings beyond the need do not count. Then it
// makes moves within the budget, the most efficient first, until none is left.

#include <algorithm>
#include <tuple>

#include "tools/lab/advise/search/solver.h"

namespace mantissa {
namespace {

using Score = std::pair<bool, double>;
constexpr Score kNoMove{false, 0.0};

// Gain per cost; moves without a cost come first, by their gain. Gains within the rounding of sums are none.
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

}  // namespace

FoundPlan greedy(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings&) {
  const PlanQuantity limited = goal.quantities()[0], least = goal.quantities()[1];
  Plan plan, met;
  for (const PlanDecision& decision : problem) plan.push_back(least_option(decision, least));
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
      for (size_t option = 0; option < options.size(); ++option) {
        const Score found = score_of(moved(totals, options[plan[i]], options[option]));
        if (found > best) std::tie(best, best_decision, best_option) = std::tuple(found, i, static_cast<int>(option));
      }
    }
    if (best == kNoMove) break;
    plan[best_decision] = best_option;
    totals = evaluate(problem, plan);
    if (!met.empty() && !goal.is_met(totals)) break;  // rounding
  }
  return {.plan = met.empty() ? plan : met};
}

}  // namespace mantissa
