// The differentiable search: a softmax over the options of each place that is trained with the model.
//
// Each step draws a plan (SoftChoice), runs its passes, and updates the model by their gradients, which go straight
// through the roundings. What each option of each layer would add to the loss is learnt from the same passes:
//   task        sum of dL/dy (y_o - y) over the layer's product, with dL/dy where the drawn plan is: the gradient of
//               the loss by the option's share, straight through;
//   stability   what its backward products do to the loss after an update, as the sensitivity analysis has measured it,
//               since they change no loss of their own step;
//   efficiency  the budget, by its multiplier.
// Under a budget of time or memory, task and stability are to be least. Under one of loss, expected seconds are: task
// and stability are what the multiplier limits, together with what the drawn plan did to the loss of its batch beyond
// the sum of its task terms, against fp32 for all layers. What of a layer was not seen, as of a product that is too
// large to look at, is as the analysis predicted, and so is what shared formats do, which no pass shows; in the end the
// predictions must meet the budget as well.
#pragma once

#include "tools/lab/advise/plan/plan_places.h"
#include "tools/lab/advise/search/plan_solver.h"
#include "tools/lab/analyze/sensitivity/passes.h"

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
SearchResult search_differentiably(const Config& config, DType low, const std::vector<PlannedPlace>& places,
                                   const PlanProblem& problem, const PlanGoal& goal,
                                   const DifferentiableOptions& options, Session& session);

}  // namespace mantissa
