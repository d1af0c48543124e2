// The differentiable search: a softmax over the options of each place, trained with the model.
//
// Each step draws a plan (SoftChoice), runs its passes, and updates the model by their gradients, which go straight
// through the roundings. The same passes show what each option of each layer would add to the loss:
//   task        sum of dL/dy (y_o - y) over the layer's product, with dL/dy of the drawn plan: the gradient of the loss
//               by the option's share, straight through
//   stability   effect of the option's backward products on the loss after an update, from the sensitivity analysis,
//               since they do not change the loss of their own step
//   efficiency  the budget, by its multiplier
// Under a budget of time, memory or energy, minimizes task and stability. Under one of loss, minimizes expected seconds
// and limits task and stability, together with the batch loss of the drawn plan beyond its task terms, against fp32 for
// all layers. Products that were not seen, for example because they are too large, and shared formats, which no pass
// shows, count as the analysis predicted. The final plan must also meet the budget by the predictions.
#pragma once

#include "tools/lab/advise/plan/places.h"
#include "tools/lab/advise/plan/plan_advice.h"
#include "tools/lab/advise/search/solver.h"

namespace mantissa {

// Probabilities of options, learned by descent while plans are drawn from them.
//
// p = softmax(a / tau) over the options of each decision. Plans are drawn by the Gumbel maximum (Jang, Gu, Poole,
// "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017) while the temperature tau falls. A drawn plan is
// tried as it is; the gradient is that of the expectation (straight through: Bengio, Leonard, Courville 2013):
//   d/da_o = p_o (c_o - sum p c) / tau,   c_o = loss_o / size + mu (b_o / limit)
// with loss_o the option's part of the minimized quantity, b_o its part of the limited one, and mu the multiplier of
// the constraint sum p b <= limit, which rises while the expectation is above the limit and falls while it is below.
// Both are steps of Adam, on a and on mu. Damages are measured by the steps; times and bytes are the problem's.
class SoftChoice {
 public:
  // For `steps` steps of learning. `seed`: of the draws.
  SoftChoice(const PlanProblem& problem, const PlanGoal& goal, int64_t steps, uint64_t seed);

  // A plan by the present probabilities; the same in every run. Decisions draw by their names.
  Plan draw() const;
  // One step. `damages`: what options add to the loss, by decision and option, finite, of either sign; in nats if
  // damage is limited, else in any unit. `beyond`: the loss of the drawn plan beyond the sum of its options' damages;
  // it counts in the expectation of a limited damage.
  void learn(const OptionValues& damages, double beyond = 0.0);

  const OptionValues& probabilities() const { return probabilities_; }
  // Starts from the likeliest options. Makes replacements, with the least loss of likelihood for their gain, until the
  // budget is met. exchanged() then uses the rest of the budget, with the learned damages.
  Plan settle() const;

 private:
  struct Moments {
    double m = 0.0, v = 0.0;
  };
  double temperature() const;
  void refresh();
  // Each option's part of a quantity; `damages` for damage.
  OptionValues values_of(PlanQuantity what, const OptionValues& damages) const;
  OptionValues predicted(PlanQuantity what) const;
  // The step of Adam for this gradient.
  double adam(double gradient, Moments& moments) const;

  const PlanProblem problem_;
  const PlanGoal goal_;
  const int64_t steps_;
  const uint64_t seed_;
  int64_t step_ = 0;
  OptionValues logits_, probabilities_;
  OptionValues mean_damages_;  // over the steps so far
  double mean_beyond_ = 0.0;
  std::vector<std::vector<Moments>> moments_;
  double multiplier_ = 0.0;
  Moments multiplier_moments_;
};

inline constexpr std::string_view kDifferentiable = "differentiable";

struct DifferentiableOptions {
  int64_t steps = 60;
  int64_t rows = 256;       // rows of a micro-batch to try options on
  double fp16_scale = 1.0;  // loss scale if `low` is fp16
  uint64_t seed = 1;
};

// `config`: the configuration that the plan is for. `session`: in in_exact_precision(), left unchanged. Collective.
SearchResult search_differentiably(const Config& config, DType low, const std::vector<PlannedPlace>& places,
                                   const PlanProblem& problem, const PlanGoal& goal,
                                   const DifferentiableOptions& options, Session& session);

}  // namespace mantissa
