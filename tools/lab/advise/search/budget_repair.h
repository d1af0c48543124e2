// Random plans made to meet a budget.
#pragma once

#include "tools/lab/advise/search/draws.h"
#include "tools/lab/advise/search/plan_units.h"

namespace mantissa {

// Units in random order take the option that needs least of the budget, until it is met or all of them have.
void repair_budget(const PlanUnits& units, const PlanGoal& goal, UnitPlan& plan, Draws& draws);

}  // namespace mantissa
