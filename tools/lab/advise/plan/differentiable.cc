#include "tools/lab/advise/plan/differentiable.h"

#include <algorithm>
#include <cmath>

#include "amp/autocast_policy.h"
#include "core/base/log.h"
#include "tools/lab/analyze/sensitivity/local_scores.h"

namespace mantissa {
namespace {

bool is_linear(const PlannedPlace& place) { return place.is_layer() && place.op == Op::kLinear; }

// Decisions about the forward products of linear layers: the distinct ones, and the number of each option's
// decision among them; -1: the product stays exact, or is not that of a linear layer.
struct ForwardDecisions {
  std::vector<PrecisionDecision> decisions;
  std::vector<std::vector<int>> numbers;  // by place and option

  ForwardDecisions(const std::vector<PlannedPlace>& places, DType low) {
    for (const PlannedPlace& place : places) {
      std::vector<int>& of_place = numbers.emplace_back(place.options.size(), -1);
      for (size_t option = 0; is_linear(place) && option < place.options.size(); ++option) {
        // The recipe comes after the dtype, and decides what the product multiplies.
        for (const PrecisionDecision& decision : decisions_of(place, place.options[option], low)) {
          if (decision.product && *decision.product != Product::kForward) continue;
          const auto found = std::ranges::find(decisions, decision);
          of_place[option] = static_cast<int>(found - decisions.begin());
          if (found == decisions.end()) decisions.push_back(decision);
        }
      }
    }
  }
};

// The analysis's damages in two parts: by the forward pass, and by backward products or shared formats.
struct PredictedDamages {
  OptionValues forward, backward;
};

// A linear layer's forward part is the least damage of the options with the same forward product. Attention layers have
// only this part.
PredictedDamages predicted_damages(const std::vector<PlannedPlace>& places, const PlanProblem& problem,
                                   const ForwardDecisions& decisions) {
  PredictedDamages damages;
  for (size_t i = 0; i < places.size(); ++i) {
    const std::vector<PlanOption>& options = problem[i].options;
    std::vector<double>&forward = damages.forward.emplace_back(), &backward = damages.backward.emplace_back();
    for (size_t option = 0; option < options.size(); ++option) {
      double least = places[i].is_layer() ? options[option].damage : 0.0;
      for (size_t other = 0; other < options.size() && is_linear(places[i]); ++other) {
        if (decisions.numbers[i][other] == decisions.numbers[i][option]) least = std::min(least, options[other].damage);
      }
      forward.push_back(least);
      backward.push_back(options[option].damage - least);
    }
  }
  return damages;
}

// The forward part as this batch shows it, to first order around the drawn plan; as predicted if it was not seen, or is
// not finite.
OptionValues measured_forward(const std::vector<LocalScore>& scores, const ForwardDecisions& decisions, double all_rows,
                              OptionValues found) {
  for (size_t i = 0; i < found.size(); ++i) {
    for (size_t option = 0; option < found[i].size(); ++option) {
      const int number = decisions.numbers[i][option];
      if (number < 0 || !scores[number].seen || !std::isfinite(scores[number].first_order)) continue;
      found[i][option] = scores[number].first_order * all_rows / static_cast<double>(scores[number].rows);
    }
  }
  return found;
}

}  // namespace

SearchResult search_differentiably(const Config& config, DType low, const std::vector<PlannedPlace>& places,
                                   const PlanProblem& problem, const PlanGoal& goal,
                                   const DifferentiableOptions& options, Session& session) {
  const ForwardDecisions decisions(places, low);
  const PredictedDamages predicted = predicted_damages(places, problem, decisions);
  SoftChoice soft(problem, goal, options.steps, options.seed);
  LoweredPasses passes(session);
  const auto policy_of = [&](const Plan& plan) {
    const Config planned = with_plan(config, low, places, plan, WorkingWeights::kFp32);
    passes.make_room(planned);
    return AutocastPolicy(planned.precision_rules());
  };
  // The limit excludes the common part of all plans.
  const AutocastPolicy exact = policy_of(Plan(places.size(), 0));
  const auto scale = static_cast<float>(low == DType::kF16 ? options.fp16_scale : 1.0);
  LocalScores local(decisions.decisions, {.rows = options.rows, .loss_scale = options.fp16_scale, .shown_scale = scale},
                    session.config, session.runtime);
  const auto all_rows = static_cast<double>(session.config.train.global_batch * session.config.model.context);
  const bool limits_damage = goal.budget == Budget::kLoss;
  double loss = 0.0;
  for (int64_t step = 0; step < options.steps; ++step) {
    const Plan drawn = soft.draw();
    const AutocastPolicy policy = policy_of(drawn);
    passes.load(session.next_step + step);
    const double exact_loss = limits_damage ? passes.loss(&exact) : 0.0;
    loss = passes.run(&policy, scale, &local);
    OptionValues damages = measured_forward(local.take(), decisions, all_rows, predicted.forward);
    const double change = loss - exact_loss;
    const double beyond = limits_damage && std::isfinite(change) ? change - sum_of(damages, drawn) : 0.0;
    for (size_t i = 0; i < damages.size(); ++i) {
      std::ranges::transform(damages[i], predicted.backward[i], damages[i].begin(), std::plus());
    }
    soft.learn(damages, beyond);
    passes.update(scale);  // gradients that are not finite change nothing
  }
  passes.point().restore();
  log_info("plan: {} steps with drawn plans, the last loss {:.4f}", options.steps, loss);
  SearchResult result{.plan = soft.settle()};
  result.totals = evaluate(problem, result.plan);
  result.meets_budget = goal.is_met(result.totals);
  return result;
}

}  // namespace mantissa
