// Allocation by a score: precision where a score of the sensitivity analysis asks for it, instead of the loss that the
// analysis measures.
#pragma once

#include <string>

#include "tools/lab/advise/plan/local_search.h"
#include "tools/lab/advise/plan/plan_advice.h"

namespace mantissa {

// "loss", "fisher", "hessian", "mi", "entropy". ConfigError lists them.
DamageScore parse_damage_score(const std::string& text);

// The harm of each option by the score, by place and option: the sum over the decisions that it combines, 0 for fp32.
//   fisher, hessian   the analysis's score; the Hessian's magnitude
//   mi                bits of the exact product that the lowered one does not tell, of the estimate's log2(bins)
//   entropy           bits of the lowered product's histogram times the share of bits that the format saves of 32: the
//                     more a product has to tell, the more it needs
// A score that is not known (of attention, and of products too large to sample) is the largest of the same format.
// `places` are layers.
OptionValues score_damages(DamageScore score, const SensitivityAnalysis& analysis, DType low,
                           const std::vector<PlannedPlace>& places);

// Solves the problem with these harms in place of its damages, by the solver. The result's totals are the problem's.
SearchResult allocate(const std::string& solver, const PlanProblem& problem, const PlanGoal& goal,
                      const OptionValues& harms, uint64_t seed);

}  // namespace mantissa
