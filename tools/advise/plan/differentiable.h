// The differentiable search: a softmax over the options of each layer that is trained with the model.
//
// Each step draws a plan (SoftChoice), runs its passes, and updates the model by their gradients, which go straight
// through the roundings. What each option of each layer would add to the loss is learnt from the same passes:
//   task        sum of dL/dy (y_o - y) over the layer's product, with dL/dy where the drawn plan is: the
//   straight-through
//               gradient of the loss by the option's share;
//   stability   what its backward products do to the loss after an update, as the sensitivity analysis has measured it,
//               since they change no loss of their own step;
//   efficiency  the budget, by its multiplier.
#pragma once

#include "tools/advise/plan/layer_options.h"
#include "tools/advise/search/plan_solver.h"
#include "tools/analyze/sensitivity/passes.h"

namespace mantissa {

inline constexpr std::string_view kDifferentiable = "differentiable";

struct DifferentiableOptions {
  int64_t steps = 60;
  int64_t rows = 256;       // of a micro-batch that options are tried on
  double fp16_scale = 1.0;  // of the loss, where `low` is fp16
  uint64_t seed = 1;
};

// `config`: what the plan is for; `session`: in in_exact_precision(), left as it was. Shared costs play no part in
// probabilities, but in whether the budget is met. Collective.
SearchResult search_differentiably(const Config& config, DType low, const std::vector<PlannedLayer>& layers,
                                   const PlanProblem& problem, const PlanGoal& goal,
                                   const DifferentiableOptions& options, Session& session);

}  // namespace mantissa
