// Allocation by a score: precision where a score of the sensitivity analysis asks for it, instead of the loss that the
// analysis measures.
#pragma once

#include <string>

#include "tools/lab/advise/plan/local_search.h"
#include "tools/lab/advise/plan/plan_advice.h"

namespace mantissa {

// "loss", "fisher", "hessian", "mi", "entropy". ConfigError lists them.
DamageScore parse_damage_score(const std::string& text);

// The harm of each option by the score, by place and option: the sum over its decisions, 0 for fp32.
//   fisher, hessian   the analysis's score; the Hessian's magnitude
//   mi                log2(bins) minus the mutual information of the exact and the lowered product, in bits
//   entropy           bits of the lowered product's histogram times the share of 32 bits that the format saves: a
//                     product with more information needs more bits
// An unknown score (attention, products too large to sample) is replaced by the largest of the same format. `places`
// are layers.
OptionValues score_damages(DamageScore score, const SensitivityAnalysis& analysis, DType low,
                           const std::vector<PlannedPlace>& places);

// Solves the problem with these harms in place of its damages, by the solver. The result's totals are the problem's.
SearchResult allocate(const std::string& solver, const PlanProblem& problem, const PlanGoal& goal,
                      const OptionValues& harms, uint64_t seed);

}  // namespace mantissa
