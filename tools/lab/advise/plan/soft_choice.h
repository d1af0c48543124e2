// SoftChoice: probabilities of options that are learnt by descent, while plans are drawn from them.
//
// Of each decision p = softmax(a / tau) over its options. Plans are drawn by the Gumbel maximum (Jang, Gu, Poole,
// "Categorical Reparameterization with Gumbel-Softmax", ICLR 2017), the temperature tau falls as steps go by. What is
// drawn is tried as it is; the gradient is that of the expectation, as if all options were there by their shares
// (straight through: Bengio, Leonard, Courville 2013):
//   d/da_o = p_o (c_o - sum p c) / tau,   c_o = loss_o / size + mu (b_o / limit)
// where loss_o is what the option adds to the quantity that is to be least, b_o to the one that is limited, and mu the
// multiplier of the constraint sum p b <= limit, which rises while the expectation is above the limit and falls while
// it is below. Both are steps of Adam, on a and on mu. Damage, whichever of the two it is, is what the step measured;
// times and bytes are the problem's.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/lab/advise/plan/plan_exchange.h"
#include "tools/lab/advise/search/plan_problem.h"

namespace mantissa {

class SoftChoice {
 public:
  // `steps` of learning are to come. `seed` of what is drawn.
  SoftChoice(const PlanProblem& problem, const PlanGoal& goal, int64_t steps, uint64_t seed);

  // A plan by the probabilities that there are now. Equal in every run; decisions draw by their names.
  Plan draw() const;
  // A step of learning. damages: what options add to the loss, by decision and option, finite, of either sign; in the
  // unit of the limit where that is one of damage, else in any. `beyond`: what the plan that was drawn did to the loss
  // beyond the sum of its options' damages. Where damage is limited, what is expected of it is that of the options by
  // their shares, and this.
  void learn(const OptionValues& damages, double beyond = 0.0);

  const OptionValues& probabilities() const { return probabilities_; }
  // The likeliest options, of which those that cost least likelihood for what they win give way until the budget is met
  // or nothing is left to win; what is then left of the budget is used (exchanged()), by the damages that were learnt.
  Plan settle() const;

 private:
  struct Moments {
    double m = 0.0, v = 0.0;
  };
  double temperature() const;
  Plan likeliest_within_budget() const;
  void refresh();
  // By decision and option; of damage it is `damages`.
  OptionValues values_of(PlanQuantity what, const OptionValues& damages) const;
  OptionValues predicted(PlanQuantity what) const;
  // What descent with the gradient's moments does.
  double adam(double gradient, Moments& moments) const;

  PlanProblem problem_;
  PlanGoal goal_;
  int64_t steps_, step_ = 0;
  uint64_t seed_;
  OptionValues logits_, probabilities_;
  OptionValues mean_damages_;  // of the steps so far
  double mean_beyond_ = 0.0;
  std::vector<std::vector<Moments>> moments_;
  double multiplier_ = 0.0;
  Moments multiplier_moments_;
};

}  // namespace mantissa
