// Dynamic programming over the units of a plan, with lists of what is not dominated instead of rounded costs: the
// algorithm of Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital Allocation", Management Science 15(9),
// 1969, extended by shared costs.
//
// A label is a choice for the first units: three sums and the set of shared costs that it has paid and that later units
// may pay as well. Of two labels with the same set one is dropped where the other is no worse in any of the sums that
// count (costs are not negative and are added, so that the same continuation is open to both). Where a label's set
// cannot matter any more, since all payers are behind it, it is forgotten. So the result is exact, ties included: of
// plans with equal sums the one that comes first, unit by unit, is kept.
//
// Beyond `most_labels` after a unit, lists are thinned (epsilon dominance): the range of each sum but the first is
// divided into equal intervals, and of the labels of one interval (or cell) the one with the least first sum stays. So
// a label is replaced by one that is not worse in the first sum and worse by less than the interval in the others. The
// intervals of all units add up to LabelList::gaps: what the kept labels may be off by in these sums. The first sum,
// which is the limited one, is never rounded: what meets a budget is still found as meeting it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "tools/lab/advise/search/lagrange_bound.h"
#include "tools/lab/advise/search/open_costs.h"
#include "tools/lab/advise/search/plan_units.h"

namespace mantissa {

struct LabelSearch {
  std::array<PlanQuantity, 3> order{};  // lists are sorted by these
  // How many of them count: 1 leaves the lexicographically least plan, 2 or 3 the Pareto front of so many.
  int criteria = 2;
  int64_t most_labels = 1 << 16;
  double limit = std::numeric_limits<double>::infinity();  // of the first; labels beyond are dropped
  // Labels that cannot come to plans as good as `incumbent` are dropped, where there is a bound. It is for a goal whose
  // quantities are `order`.
  const LagrangeBound* bound = nullptr;
  double incumbent = std::numeric_limits<double>::infinity();
};

struct LabelList {
  std::vector<UnitPlan> plans{};  // by rising sums, in the order of LabelSearch::order
  std::array<double, 2> gaps{};   // of the second and the third sum; 0: exact
};

// One label of each set of paid costs stays, be most_labels as it may.
LabelList undominated_plans(const PlanUnits& units, const OpenCosts& open_costs, const LabelSearch& search);

// The plan that needs least of the limited quantity, of those the best. Exact.
UnitPlan least_budget_plan(const PlanUnits& units, const OpenCosts& open_costs, const PlanGoal& goal);

}  // namespace mantissa
