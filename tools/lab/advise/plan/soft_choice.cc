#include "tools/lab/advise/plan/differentiable.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/tensor/philox.h"

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
  const auto losses = values_of(goal_.quantities()[1], damages), limited = values_of(goal_.quantities()[0], damages);
  // Squares of quotients by a tiny limit must stay finite.
  const double size = spread(losses), limit = std::max(goal_.limit, kLeastLimit * spread(limited));
  double expected = goal_.budget == Budget::kLoss ? beyond : 0.0;
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
  const PlanQuantity limited = goal_.quantities()[0], least = goal_.quantities()[1];
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

}  // namespace mantissa
