// PlanTrials: what training says about a plan, and what becomes of the plan then.
#pragma once

#include <functional>

#include "tools/lab/advise/plan/plan_advice.h"

namespace mantissa {

inline constexpr int kMostPromotions = 3;

// Trains the configuration of a plan beside uniform ones, 16 bits and fp32: validate_plan().
using TrainPlan = std::function<PlanValidation(const Config& plan)>;

// Trains the plan of the advice. One that does more damage beside fp32 than its parts promised, or that fails where 16
// bits or fp32 come through, gives back what it does most damage with, and is trained again, until it keeps its
// promise, has nothing to give back that the device has the memory for, or has done so kMostPromotions times. One that
// is measured to be slower than 16 bits throughout, and than its budget allows, or that is left worse than they are,
// gives way to them where they meet the budget. The validation in the advice is that of its plan.
void try_plan(const TrainPlan& train, const Config& config, const Target& target, int ranks, PlanAdvice& advice);

}  // namespace mantissa
