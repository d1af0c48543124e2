#include "tools/advise/plan/differentiable.h"

#include <algorithm>
#include <cmath>

#include "core/base/log.h"
#include "tools/advise/plan/soft_choice.h"
#include "tools/analyze/sensitivity/local_scores.h"

namespace mantissa {
namespace {

// What an option does to the forward product: nothing, a dtype, or a recipe.
std::optional<PrecisionDecision> forward_of(const PlannedLayer& layer, const LayerOption& option, DType low) {
  std::optional<PrecisionDecision> found;
  for (PrecisionDecision& decision : decisions_of(layer, option, low)) {
    // The recipe, which comes behind the dtype, decides what the product multiplies.
    if (!decision.product || *decision.product == Product::kForward) found = std::move(decision);
  }
  return found;
}

// The place of each option's forward decision among all of them; -1: none is tried.
class ForwardDecisions {
 public:
  ForwardDecisions(const std::vector<PlannedLayer>& layers, DType low) {
    for (const PlannedLayer& layer : layers) {
      std::vector<int>& places = places_.emplace_back();
      for (const LayerOption& option : layer.options) {
        auto decision = layer.op == Op::kLinear ? forward_of(layer, option, low) : std::nullopt;
        places.push_back(decision ? place_of(std::move(*decision)) : -1);
      }
    }
  }
  const std::vector<PrecisionDecision>& decisions() const { return decisions_; }
  int place(size_t layer, size_t option) const { return places_[layer][option]; }

 private:
  int place_of(PrecisionDecision decision) {
    const auto found = std::find(decisions_.begin(), decisions_.end(), decision);
    if (found != decisions_.end()) return static_cast<int>(found - decisions_.begin());
    decisions_.push_back(std::move(decision));
    return static_cast<int>(decisions_.size()) - 1;
  }

  std::vector<PrecisionDecision> decisions_;
  std::vector<std::vector<int>> places_;
};

// The damage of an option beyond that of the option which lowers the forward product alone; of attentions all of it.
std::vector<std::vector<double>> stability_terms(const std::vector<PlannedLayer>& layers, const PlanProblem& problem,
                                                 const ForwardDecisions& forward) {
  std::vector<std::vector<double>> terms;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::vector<PlanOption>& options = problem.decisions[i].options;
    std::vector<double>& damages = terms.emplace_back();
    for (size_t option = 0; option < options.size(); ++option) {
      double least = options[option].damage;  // of the options with the same forward product
      for (size_t other = 0; other < options.size(); ++other) {
        if (forward.place(i, other) == forward.place(i, option)) least = std::min(least, options[other].damage);
      }
      damages.push_back(layers[i].op == Op::kLinear ? options[option].damage - least : options[option].damage);
    }
  }
  return terms;
}

}  // namespace

SearchResult search_differentiably(const Config& config, DType low, const std::vector<PlannedLayer>& layers,
                                   const PlanProblem& problem, const PlanGoal& goal,
                                   const DifferentiableOptions& options, Session& session) {
  const ForwardDecisions forward(layers, low);
  const auto stability = stability_terms(layers, problem, forward);
  SoftChoice soft(problem, goal, options.steps, options.seed);
  LoweredPasses passes(session);
  const auto scale = static_cast<float>(low == DType::kF16 ? options.fp16_scale : 1.0);
  LocalScores local(forward.decisions(), {.rows = options.rows, .loss_scale = options.fp16_scale, .shown_scale = scale},
                    session);
  const bool minds_damage = goal.quantities()[1] == PlanQuantity::kDamage;
  double loss = 0.0;
  for (int64_t step = 0; step < options.steps; ++step) {
    Config drawn = with_plan(config, low, layers, soft.draw());
    drawn.precision.weights = WorkingWeights::kFp32;  // the session's own
    passes.make_room(drawn);
    const AutocastPolicy policy(drawn.autocast());
    passes.load(session.next_step + step);
    loss = passes.run(&policy, scale, &local);
    const std::vector<LocalScore> scores = local.take();
    std::vector<std::vector<double>> losses = stability;
    for (size_t i = 0; i < layers.size(); ++i) {
      for (size_t option = 0; option < layers[i].options.size(); ++option) {
        if (!minds_damage) {
          losses[i][option] = problem.decisions[i].options[option].seconds;
          continue;
        }
        const int place = forward.place(i, option);
        if (place < 0) continue;
        const LocalScore& score = scores[static_cast<size_t>(place)];
        if (!score.seen || !std::isfinite(score.first_order)) continue;  // a step that went wrong says nothing
        const double all_rows = static_cast<double>(session.config.train.global_batch * session.config.model.context);
        losses[i][option] += score.first_order * all_rows / static_cast<double>(score.rows);
      }
    }
    soft.learn(losses);
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
