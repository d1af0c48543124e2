// A plan as a sum of parts: what each option of each layer costs and does to the loss alone, as a problem for solvers.
#pragma once

#include <vector>

#include "tools/advise/plan/plan_costs.h"
#include "tools/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa {

// Takes options away that overflow, or that the analysis could not try.
void take_known(std::vector<PlannedLayer>& layers, DType low, const SensitivityAnalysis& sensitivity);

// Of layers whose options are all known. `common`: what every plan costs; a decision counts from its least option on.
PlanProblem problem_of(const std::vector<PlannedLayer>& layers, DType low, const OptionCosts& costs,
                       const SensitivityAnalysis& sensitivity, StepCost& common);

}  // namespace mantissa
