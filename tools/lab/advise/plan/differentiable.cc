#include "tools/lab/advise/plan/differentiable.h"

#include <algorithm>
#include <cmath>

#include "amp/autocast_policy.h"
#include "core/base/log.h"
#include "tools/lab/advise/plan/soft_choice.h"
#include "tools/lab/analyze/sensitivity/local_scores.h"

namespace mantissa {
namespace {

bool is_linear(const PlannedPlace& place) { return place.is_layer() && place.op == Op::kLinear; }

// What an option does to the forward product: nothing, a dtype, or a recipe.
std::optional<PrecisionDecision> forward_of(const PlannedPlace& layer, const PlaceOption& option, DType low) {
  std::optional<PrecisionDecision> found;
  for (PrecisionDecision& decision : decisions_of(layer, option, low)) {
    // The recipe, which comes behind the dtype, decides what the product multiplies.
    if (!decision.product || *decision.product == Product::kForward) found = std::move(decision);
  }
  return found;
}

// The number of each option's forward decision among all of them; -1: none is tried.
class ForwardDecisions {
 public:
  ForwardDecisions(const std::vector<PlannedPlace>& places, DType low) {
    for (const PlannedPlace& place : places) {
      std::vector<int>& numbers = numbers_.emplace_back();
      for (const PlaceOption& option : place.options) {
        auto decision = is_linear(place) ? forward_of(place, option, low) : std::nullopt;
        numbers.push_back(decision ? number_of(std::move(*decision)) : -1);
      }
    }
  }
  const std::vector<PrecisionDecision>& decisions() const { return decisions_; }
  int number(size_t place, size_t option) const { return numbers_[place][option]; }

 private:
  int number_of(PrecisionDecision decision) {
    const auto found = std::find(decisions_.begin(), decisions_.end(), decision);
    if (found != decisions_.end()) return static_cast<int>(found - decisions_.begin());
    decisions_.push_back(std::move(decision));
    return static_cast<int>(decisions_.size()) - 1;
  }

  std::vector<PrecisionDecision> decisions_;
  std::vector<std::vector<int>> numbers_;
};

// What the analysis says that options do to the loss, in two parts: by what they make of the forward pass, and by their
// backward products or by what all layers share.
struct PredictedDamages {
  OptionValues forward, backward;
};

// Of a linear layer the part of the forward pass is the damage of the option which lowers the forward product alone; of
// attentions it is all.
PredictedDamages predicted_damages(const std::vector<PlannedPlace>& places, const PlanProblem& problem,
                                   const ForwardDecisions& forward) {
  PredictedDamages damages;
  for (size_t i = 0; i < places.size(); ++i) {
    const std::vector<PlanOption>& options = problem.decisions[i].options;
    std::vector<double>&at_once = damages.forward.emplace_back(), &later = damages.backward.emplace_back();
    for (size_t option = 0; option < options.size(); ++option) {
      double least = places[i].is_layer() ? options[option].damage : 0.0;  // of those with the same forward product
      for (size_t other = 0; other < options.size() && is_linear(places[i]); ++other) {
        if (forward.number(i, other) == forward.number(i, option)) least = std::min(least, options[other].damage);
      }
      at_once.push_back(least);
      later.push_back(options[option].damage - least);
    }
  }
  return damages;
}

// What options do to the loss of a batch by the forward pass, to first order where the drawn plan is. What was not
// seen, or is not finite since the step went wrong, is as predicted.
OptionValues measured_forward(const std::vector<LocalScore>& scores, const ForwardDecisions& forward, double all_rows,
                              const OptionValues& predicted) {
  OptionValues found = predicted;
  for (size_t i = 0; i < found.size(); ++i) {
    for (size_t option = 0; option < found[i].size(); ++option) {
      const int number = forward.number(i, option);
      if (number < 0) continue;
      const LocalScore& score = scores[static_cast<size_t>(number)];
      if (!score.seen || !std::isfinite(score.first_order)) continue;
      found[i][option] = score.first_order * all_rows / static_cast<double>(score.rows);
    }
  }
  return found;
}

// What the drawn plan did to the loss beyond the sum of its options' `forward`; 0 where it is not known.
double beyond_sum(double change, const Plan& drawn, const OptionValues& forward) {
  if (!std::isfinite(change)) return 0.0;
  for (size_t i = 0; i < drawn.size(); ++i) change -= forward[i][static_cast<size_t>(drawn[i])];
  return change;
}

}  // namespace

SearchResult search_differentiably(const Config& config, DType low, const std::vector<PlannedPlace>& places,
                                   const PlanProblem& problem, const PlanGoal& goal,
                                   const DifferentiableOptions& options, Session& session) {
  const ForwardDecisions forward(places, low);
  const PredictedDamages predicted = predicted_damages(places, problem, forward);
  SoftChoice soft(problem, goal, options.steps, options.seed);
  LoweredPasses passes(session);
  const auto policy_of = [&](const Plan& plan) {
    const Config planned = with_plan(config, low, places, plan, WorkingWeights::kFp32);
    passes.make_room(planned);
    return AutocastPolicy(planned.precision_rules());
  };
  // What all plans have in common is in the limit already.
  const AutocastPolicy exact = policy_of(Plan(places.size(), 0));
  const auto scale = static_cast<float>(low == DType::kF16 ? options.fp16_scale : 1.0);
  LocalScores local(forward.decisions(), {.rows = options.rows, .loss_scale = options.fp16_scale, .shown_scale = scale},
                    session);
  const auto all_rows = static_cast<double>(session.config.train.global_batch * session.config.model.context);
  const bool limits_damage = goal.budget == Budget::kLoss;
  double loss = 0.0;
  for (int64_t step = 0; step < options.steps; ++step) {
    const Plan drawn = soft.draw();
    const AutocastPolicy policy = policy_of(drawn);
    passes.load(session.next_step + step);
    const double exact_loss = limits_damage ? passes.loss(&exact) : 0.0;
    loss = passes.run(&policy, scale, &local);
    OptionValues damages = measured_forward(local.take(), forward, all_rows, predicted.forward);
    const double beyond = limits_damage ? beyond_sum(loss - exact_loss, drawn, damages) : 0.0;
    for (size_t i = 0; i < damages.size(); ++i) {
      for (size_t option = 0; option < damages[i].size(); ++option) damages[i][option] += predicted.backward[i][option];
    }
    soft.learn(damages, beyond);
    passes.update(scale);  // what is not finite changes nothing
  }
  passes.point().restore();
  log_info("plan: {} steps with drawn plans, the last loss {:.4f}", options.steps, loss);
  SearchResult result{.plan = soft.settle(), .totals = {}, .plans_tried = options.steps};
  result.totals = evaluate(problem, result.plan);
  result.meets_budget = goal.is_met(result.totals);
  return result;
}

}  // namespace mantissa
