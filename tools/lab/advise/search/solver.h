// The solver: from a PlanProblem and a budget to the best plan, and from a plan to its reasons.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/advise/search/problem.h"

namespace mantissa {

struct SearchResult {
  Plan plan{};
  PlanTotals totals{};
  // If no plan meets the budget, `plan` is the best of the plans with the least excess.
  bool meets_budget = true;
  // 0: `plan` is the optimum. Else too many partial plans were left: the optimum has less of the minimized quantity by
  // at most this.
  double gap = 0;
};

// The optimum, if at most `most_labels` partial plans need to be kept after any decision (solver.cc). Beyond, the
// result has a gap; whether the budget can be met is still found exactly. The result does not depend on the order of
// the decisions. ConfigError as check_problem() and check_goal().
SearchResult solve(const PlanProblem& problem, const PlanGoal& goal, int64_t most_labels = 1 << 16);

// Plans that no other plan beats in time, memory, damage and, where it is known, energy at once.
struct ParetoFront {
  std::vector<Plan> plans{};  // by rising time; one plan for equal totals
  // 0 if the front is complete. Else the front has, for every plan, one at most as slow, with at most this much more
  // damage, memory and energy.
  double damage_gap = 0, bytes_gap = 0, joules_gap = 0;
};
// Keeps at most `most_labels` partial plans (solver.cc). ConfigError as check_problem().
ParetoFront pareto_front(const PlanProblem& problem, int64_t most_labels = 1 << 12);

// Why a plan is as it is: one line for each decision, for instance
//   fp8: saves 1.2 ms (3.1 %) against fp32, costs 0.0004 nats; bf16 instead: +0.3 ms, -0.0003 nats
//   kept fp32: fp8 would cost 0.02 nats for 0.4 ms
//   kept fp32: nothing here saves time
// Savings are in the budget's quantity, and in time under one of loss. "Kept" is the least damaging option; per cent
// are of the plan in which all decisions keep theirs. "Instead" is the change after which the plan would be best.
// ConfigError as evaluate().
std::vector<std::string> plan_reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan);

}  // namespace mantissa
