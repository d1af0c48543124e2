// By sensitivity alone: the k units that can do most damage keep their least damaging option, the others take a cheap
// one. What the units cost plays no part in who is kept, which is how layers are often chosen by hand.
//
// Tried are all k from 0 to the number of units, and as the cheap option the one that costs least, then for each place
// in the list of options the one in that place, for the units that have it; the best of these plans is the result.
#pragma once

#include "tools/lab/advise/search/plan_solver.h"

namespace mantissa {

class TopK : public PlanSolver {
 public:
  std::string_view name() const override { return "top_k"; }

 protected:
  Found search(const PlanUnits& units, const PlanGoal& goal) const override;
};

}  // namespace mantissa
