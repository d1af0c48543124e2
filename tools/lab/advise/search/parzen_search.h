// Bayesian search over options by the tree-structured Parzen estimator: Bergstra, Bardenet, Bengio, Kegl, "Algorithms
// for Hyper-Parameter Optimization", NeurIPS 2011.
//
// It needs nothing but values of plans, which may be measurements. The plans tried so far are divided into the better
// quarter and the rest; for each unit the frequencies of its options among either, with one more plan in which all are
// equally frequent, estimate densities l and g. Candidates are drawn from l, and the one with the largest l / g, which
// has the largest expected improvement, is tried next.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "tools/lab/advise/search/draws.h"
#include "tools/lab/advise/search/plan_units.h"

namespace mantissa {

struct ParzenSettings {
  uint64_t seed = 1;
  int evaluations = 400;  // of the objective
  int random_plans = 40;  // that are tried first; the first are the uniform ones
  double better_share = 0.25;
  int candidates = 32;  // drawn for each evaluation
  // What is known without the objective, such as a budget: changes a plan that was drawn into one that is allowed. The
  // default allows all.
  std::function<void(UnitPlan&, Draws&)> repair = [](UnitPlan&, Draws&) {};
};

struct ParzenResult {
  UnitPlan plan{};
  double value = std::numeric_limits<double>::infinity();
  int64_t evaluations = 0;  // fewer than asked for where every plan that was drawn had been tried
};

// The plan with the least value of those tried; of equals the first one. NaN counts as worse than every number, as of a
// run that diverged. No plan is evaluated twice. The same seed and values give the same plans.
ParzenResult parzen_search(const PlanUnits& units, const std::function<double(const UnitPlan&)>& objective,
                           const ParzenSettings& settings);

}  // namespace mantissa
