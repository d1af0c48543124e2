#include "tools/lab/advise/plan/differentiable.h"

#include <algorithm>
#include <cmath>

#include "amp/autocast_policy.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "core/tensor/philox.h"
#include "tools/lab/analyze/sensitivity/local_scores.h"

namespace mantissa {
namespace {

constexpr double kFirstTemperature = 1.0, kLastTemperature = 0.2;
constexpr double kLogitRate = 0.1, kMultiplierRate = 0.1;
constexpr double kBeta1 = 0.9, kBeta2 = 0.99;
constexpr double kLeastLimit = 1e-9;  // as a share of the differences between options

// The root mean square of differences between options: the unit of losses, so that rates mean the same for all models.
double spread(const OptionValues& values) {
  double squares = 0.0;
  size_t count = 0;
  for (const std::vector<double>& options : values) {
    double mean = 0.0;
    for (const double value : options) mean += value / static_cast<double>(options.size());
    for (const double value : options) squares += (value - mean) * (value - mean);
    count += options.size();
  }
  return squares > 0.0 ? std::sqrt(squares / static_cast<double>(count)) : 1.0;
}

// FNV-1a, so that a decision's draws do not depend on its position.
uint32_t hash(const std::string& name) {
  uint32_t value = 2166136261u;
  for (const char c : name) value = (value ^ static_cast<unsigned char>(c)) * 16777619u;
  return value;
}

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

SoftChoice::SoftChoice(const PlanProblem& problem, const PlanGoal& goal, int64_t steps, uint64_t seed)
    : problem_(problem), goal_(goal), steps_(steps), seed_(seed) {
  check_problem(problem);
  check_goal(goal);
  for (const PlanDecision& decision : problem) {
    logits_.emplace_back(decision.options.size(), 0.0);
    moments_.emplace_back(decision.options.size());
  }
  mean_damages_ = logits_;
  refresh();
}

double SoftChoice::temperature() const {
  const double share = static_cast<double>(step_) / static_cast<double>(std::max<int64_t>(1, steps_));
  return kFirstTemperature * std::pow(kLastTemperature / kFirstTemperature, std::min(1.0, share));
}

void SoftChoice::refresh() {
  probabilities_ = logits_;
  for (std::vector<double>& options : probabilities_) {
    const double largest = std::ranges::max(options);
    double sum = 0.0;
    for (double& option : options) sum += option = std::exp((option - largest) / temperature());
    for (double& option : options) option /= sum;
  }
}

Plan SoftChoice::draw() const {
  Plan plan;
  for (size_t i = 0; i < probabilities_.size(); ++i) {
    std::vector<double> values;
    for (const double probability : probabilities_[i]) {
      const PhiloxCounter words = philox(
          seed_, {static_cast<uint32_t>(step_), hash(problem_[i].name), static_cast<uint32_t>(values.size()), 0});
      const double uniform = (static_cast<double>(words[0]) + 0.5) * 0x1p-32;
      values.push_back(std::log(probability) - std::log(-std::log(uniform)));
    }
    plan.push_back(static_cast<int>(std::ranges::max_element(values) - values.begin()));
  }
  return plan;
}

double SoftChoice::adam(double gradient, Moments& moments) const {
  moments.m += (1.0 - kBeta1) * (gradient - moments.m);
  moments.v += (1.0 - kBeta2) * (gradient * gradient - moments.v);
  const auto count = static_cast<double>(step_ + 1);
  const double m = moments.m / (1.0 - std::pow(kBeta1, count)), v = moments.v / (1.0 - std::pow(kBeta2, count));
  return v > 0.0 ? m / std::sqrt(v) : 0.0;
}

OptionValues SoftChoice::predicted(PlanQuantity what) const {
  OptionValues values;
  for (const PlanDecision& decision : problem_) {
    std::vector<double>& of_options = values.emplace_back();
    for (const PlanOption& option : decision.options) of_options.push_back(quantity(option.totals(), what));
  }
  return values;
}

OptionValues SoftChoice::values_of(PlanQuantity what, const OptionValues& damages) const {
  return what == PlanQuantity::kDamage ? damages : predicted(what);
}

void SoftChoice::learn(const OptionValues& damages, double beyond) {
  MANTISSA_CHECK(damages.size() == logits_.size(), "[soft_choice] damages of {} decisions, expected {}", damages.size(),
                 logits_.size());
  const auto losses = values_of(goal_.quantities()[1], damages), limited = values_of(goal_.budget, damages);
  // Squares of quotients by a tiny limit must stay finite.
  const double size = spread(losses), limit = std::max(goal_.limit, kLeastLimit * spread(limited));
  double expected = goal_.budget == PlanQuantity::kDamage ? beyond : 0.0;
  for (size_t i = 0; i < logits_.size(); ++i) {
    std::vector<double> costs;
    double mean = 0.0;
    for (size_t option = 0; option < losses[i].size(); ++option) {
      const double b = limited[i][option];
      costs.push_back(losses[i][option] / size + multiplier_ * static_cast<double>(logits_.size()) * b / limit);
      mean += probabilities_[i][option] * costs.back();
      expected += probabilities_[i][option] * b;
    }
    for (size_t option = 0; option < costs.size(); ++option) {
      const double gradient = probabilities_[i][option] * (costs[option] - mean) / temperature();
      logits_[i][option] -= kLogitRate * adam(gradient, moments_[i][option]);
    }
  }
  multiplier_ = std::max(0.0, multiplier_ - kMultiplierRate * adam(1.0 - expected / limit, multiplier_moments_));
  ++step_;
  const double share = 1.0 / static_cast<double>(step_);
  for (size_t i = 0; i < damages.size(); ++i) {
    for (size_t option = 0; option < damages[i].size(); ++option) {
      mean_damages_[i][option] += share * (damages[i][option] - mean_damages_[i][option]);
    }
  }
  mean_beyond_ += share * (beyond - mean_beyond_);
  refresh();
}

Plan SoftChoice::settle() const {
  const PlanQuantity limited = goal_.budget, least = goal_.quantities()[1];
  const OptionValues amounts = predicted(limited);
  Plan plan;
  for (const std::vector<double>& options : probabilities_) {
    plan.push_back(static_cast<int>(std::ranges::max_element(options) - options.begin()));
  }
  while (!goal_.is_met(evaluate(problem_, plan))) {
    double cheapest = std::numeric_limits<double>::infinity();  // likelihood lost per gain
    size_t decision = 0;
    int better = -1;
    for (size_t i = 0; i < plan.size(); ++i) {
      for (int option = 0; option < std::ssize(amounts[i]); ++option) {
        const double won = amounts[i][plan[i]] - amounts[i][option];
        const double price = std::log(probabilities_[i][plan[i]] / probabilities_[i][option]) / won;
        if (won > 0.0 && price < cheapest) std::tie(cheapest, decision, better) = std::tuple(price, i, option);
      }
    }
    if (better < 0) return plan;  // the budget cannot be met
    plan[decision] = better;
  }
  std::vector<SumLimit> limits = {{amounts, goal_.tolerated()}};
  if (limited == PlanQuantity::kDamage) limits.push_back({mean_damages_, goal_.tolerated() - mean_beyond_});
  return exchanged(plan, values_of(least, mean_damages_), limits);
}

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
  const bool limits_damage = goal.budget == PlanQuantity::kDamage;
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
