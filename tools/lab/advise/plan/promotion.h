// Re-promotion: a plan that does worse than the sum of its parts promised gives back what it does most damage with.
#pragma once

#include <optional>

#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa {

// The plan with decisions (their groups with them) taken to their next less damaging options, those that win most
// predicted loss for each second they cost first, until at most half of its predicted damage is left. Nothing where it
// has none: then its parts are not what is wrong with it.
std::optional<Plan> promoted(const PlanProblem& problem, const Plan& plan);

}  // namespace mantissa
