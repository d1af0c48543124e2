// Why a plan is as it is: a line for each decision.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa {

// In the order of the decisions, for instance
//   fp8: saves 1.2 ms (3.1 %) against fp32, costs 0.0004 nats; bf16 instead: +0.3 ms, -0.0003 nats
//   kept fp32: fp8 would cost 0.02 nats for 0.4 ms
//   kept fp32: nothing here saves time
// and behind a semicolon which decisions take the same option or share a cost that is paid here. What is saved is time,
// with a budget of memory bytes; per cent are of the plan in which all decisions keep their first least damaging
// option. Differences are those of the whole plan with this decision (and its group) changed, so that shared costs
// count where they are saved. "Instead" is the change after which the plan would be best, "kept" is the option with the
// least damage. ConfigError as evaluate().
std::vector<std::string> plan_reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan);

}  // namespace mantissa
