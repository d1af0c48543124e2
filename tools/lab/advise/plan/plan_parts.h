// A plan as a sum of parts: what each option of each place costs and does to the loss alone, as a problem for solvers.
#pragma once

#include <vector>

#include "tools/lab/advise/plan/plan_costs.h"
#include "tools/lab/advise/plan/shared_trials.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa {

// What options of layers and of shared formats were found to do to the loss.
struct KnownDamages {
  DType low = DType::kBF16;
  const SensitivityAnalysis& layers;
  const std::vector<SharedDamage>& shared;
};

// Takes options away that overflow, or that could not be tried.
void take_known(std::vector<PlannedPlace>& places, const KnownDamages& damages);

// Of places whose options are all known. `common`: what every plan costs; a decision counts from its least option on.
PlanProblem problem_of(const std::vector<PlannedPlace>& places, const OptionCosts& costs, const KnownDamages& damages,
                       StepCost& common);

}  // namespace mantissa
