// Search among plans that are priced as wholes. Sums of what options cost alone do not know that neighbours share
// casts, or that memory is what is held at the step's peak; a solver's optimum of the sums (plan_solver.h) is near the
// optimum of the wholes, and where the search begins.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa {

struct WholeSearch {
  std::vector<int> options{};  // of each decision, their number
  PlanGoal goal{};
  // Of time or memory: plans whose damages differ from the least within the budget by no more than this are as good,
  // and the fastest of them is taken.
  double tolerance = 0.0;
  double most_bytes = std::numeric_limits<double>::infinity();  // that there are, whatever the budget limits
  std::vector<Plan> starts{};                                   // at least one
  std::function<PlanTotals(const Plan&)> price{};               // of a whole plan
  int64_t most_plans = 1 << 9;                                  // that are priced, beside the starts
};

struct FoundWhole {
  Plan plan{};
  PlanTotals totals{};
  int64_t plans_priced = 0;
  bool is_optimum = false;  // every plan that there is was priced
};

// Where there are no more plans than may be priced, the best of all. Else from the best start on, decision by decision
// and then pair by pair, what makes the plan better, until nothing does or enough plans were priced: no plan that is
// better is one decision away, where they were enough. Where there is a tolerance, first for the least damage, then
// among what is as good, each with half of the plans. Plans that take more bytes than there are come behind all
// others.
FoundWhole search_wholes(const WholeSearch& search);

}  // namespace mantissa
