// Problems of random numbers whose sums are exact: all are multiples of 2^-10, so that solvers which add in different
// orders agree bit for bit, and a budget can be met exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa::testing {

// `decisions` decisions of 2 to 4 options: the further down the list, the less it costs and the more damage it does, on
// the whole. Among them a group of three and shared costs of two or three decisions each, which overlap. The same seed
// gives the same problem.
PlanProblem random_problem(uint64_t seed, int decisions);

// Budgets from below what can be met to more than any plan needs, among them some that plans meet exactly.
std::vector<PlanGoal> budgets_of(const PlanProblem& problem, uint64_t seed);

// What a plan that meets the budget has more of the quantity to be least than the optimum, which is enumerated, as a
// share of the distance from there to the plan that needs least of the budget. Nothing where no plan meets it.
std::optional<double> gap_to_optimum(const PlanProblem& problem, const PlanGoal& goal, const PlanTotals& found);

// The same problem with its decisions, groups and shared costs in another order. `place` is set to where each decision
// has come to.
PlanProblem shuffled(const PlanProblem& problem, uint64_t seed, std::vector<int>& place);

}  // namespace mantissa::testing
