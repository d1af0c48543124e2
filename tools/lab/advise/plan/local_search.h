// Local searches: among plans priced as wholes, among sums with several limits, and from a plan back to less damage.
#pragma once

#include <functional>
#include <limits>
#include <optional>

#include "tools/lab/advise/search/problem.h"

namespace mantissa {

// Sums of option costs ignore the casts shared by neighbours, and that only memory at the step's peak counts. The
// optimum of the sums is near the optimum of the wholes, so this search starts there.
struct WholeSearch {
  std::vector<int> options{};  // their number for each decision
  PlanGoal goal{};
  // Unless the budget is one of loss: plans within this of the least damage count as equal, and the fastest is taken.
  double tolerance = 0.0;
  double most_bytes = std::numeric_limits<double>::infinity();  // device memory, in addition to the budget
  std::vector<Plan> starts{};                                   // at least one
  std::function<PlanTotals(const Plan&)> price{};               // price of a whole plan
  int64_t most_plans = 1 << 9;                                  // to price, besides the starts
};

struct FoundWhole {
  Plan plan{};
  PlanTotals totals{};
  int64_t plans_priced = 0;
  bool is_optimum = false;  // every plan was priced
};

// The best of all plans, if no more than most_plans exist. Otherwise goes from the best start to better plans, changing
// a decision at a time and then pairs, until none is better or enough plans were priced. With a tolerance, searches
// first for the least damage, then among equally good plans, each with half of the plans. Plans that need more than
// most_bytes rank last.
FoundWhole search_wholes(const WholeSearch& search);

using OptionValues = std::vector<std::vector<double>>;  // by decision and option

// The options of a plan may sum up to this.
struct SumLimit {
  OptionValues amounts;
  double limit;
};

double sum_of(const OptionValues& values, const Plan& plan);

// Lowers the sum of `costs` by changing one or two decisions at a time, the best change first, within all limits.
// Returns a plan that exceeds a limit unchanged.
Plan exchanged(Plan plan, const OptionValues& costs, const std::vector<SumLimit>& limits);

// Promotion: changes decisions to less damaging options until at most half of the plan's predicted damage is left. Each
// change wins the most predicted loss for its seconds. Nothing if the plan has no damage to reduce.
std::optional<Plan> promoted(const PlanProblem& problem, const Plan& plan);

}  // namespace mantissa
