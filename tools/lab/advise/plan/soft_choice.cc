#include "tools/lab/advise/plan/soft_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/base/check.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

constexpr double kFirstTemperature = 1.0, kLastTemperature = 0.2;
constexpr double kLogitRate = 0.1, kMultiplierRate = 0.1;
constexpr double kBeta1 = 0.9, kBeta2 = 0.99;
constexpr double kLeastLimit = 1e-9;  // of what options differ by

double of(const PlanOption& option, PlanQuantity what) { return quantity(totals_of(option), what); }

// The root mean square of what options differ by: the unit of losses, so that rates mean the same for all models.
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

// FNV-1a, so that a decision draws the same wherever it stands.
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
  for (const PlanDecision& decision : problem.decisions) {
    logits_.emplace_back(decision.options.size(), 0.0);
    moments_.emplace_back(decision.options.size());
    mean_damages_.emplace_back(decision.options.size(), 0.0);
  }
  refresh();
}

double SoftChoice::temperature() const {
  const double share = static_cast<double>(step_) / static_cast<double>(std::max<int64_t>(1, steps_));
  return kFirstTemperature * std::pow(kLastTemperature / kFirstTemperature, std::min(1.0, share));
}

void SoftChoice::refresh() {
  probabilities_ = logits_;
  for (std::vector<double>& options : probabilities_) {
    const double largest = *std::max_element(options.begin(), options.end());
    double sum = 0.0;
    for (double& option : options) sum += option = std::exp((option - largest) / temperature());
    for (double& option : options) option /= sum;
  }
}

Plan SoftChoice::draw() const {
  Plan plan;
  for (size_t i = 0; i < probabilities_.size(); ++i) {
    size_t best = 0;
    double highest = -std::numeric_limits<double>::infinity();
    for (size_t option = 0; option < probabilities_[i].size(); ++option) {
      const PhiloxCounter words = philox(
          seed_, {static_cast<uint32_t>(step_), hash(problem_.decisions[i].name), static_cast<uint32_t>(option), 0});
      const double uniform = (static_cast<double>(words[0]) + 0.5) * 0x1p-32;
      const double value = std::log(probabilities_[i][option]) - std::log(-std::log(uniform));
      if (value > highest) {
        highest = value;
        best = option;
      }
    }
    plan.push_back(static_cast<int>(best));
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

OptionValues SoftChoice::values_of(PlanQuantity what, const OptionValues& damages) const {
  return what == PlanQuantity::kDamage ? damages : predicted(what);
}

OptionValues SoftChoice::predicted(PlanQuantity what) const {
  OptionValues values;
  for (const PlanDecision& decision : problem_.decisions) {
    OptionValues::value_type& of_options = values.emplace_back();
    for (const PlanOption& option : decision.options) of_options.push_back(of(option, what));
  }
  return values;
}

void SoftChoice::learn(const OptionValues& damages, double beyond) {
  MANTISSA_CHECK(damages.size() == logits_.size(), "[soft_choice] damages of {} decisions, expected {}", damages.size(),
                 logits_.size());
  const auto losses = values_of(goal_.quantities()[1], damages), limited = values_of(goal_.quantities()[0], damages);
  // Of a limit of next to nothing the squares of what is divided by it must still be numbers.
  const double size = spread(losses), limit = std::max(goal_.limit, kLeastLimit * spread(limited));
  double expected = goal_.quantities()[0] == PlanQuantity::kDamage ? beyond : 0.0;
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

Plan SoftChoice::likeliest_within_budget() const {
  const PlanQuantity limited = goal_.quantities()[0];
  Plan plan;
  for (const std::vector<double>& options : probabilities_) {
    plan.push_back(static_cast<int>(std::max_element(options.begin(), options.end()) - options.begin()));
  }
  while (!goal_.is_met(evaluate(problem_, plan))) {
    size_t decision = 0;
    int better = -1;
    double cheapest = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < plan.size(); ++i) {
      const std::vector<PlanOption>& options = problem_.decisions[i].options;
      const auto now = static_cast<size_t>(plan[i]);
      for (size_t option = 0; option < options.size(); ++option) {
        const double won = of(options[now], limited) - of(options[option], limited);
        if (!(won > 0.0)) continue;
        const double price = std::log(probabilities_[i][now] / probabilities_[i][option]) / won;
        if (price < cheapest) {
          cheapest = price;
          decision = i;
          better = static_cast<int>(option);
        }
      }
    }
    if (better < 0) break;
    plan[decision] = better;
  }
  return plan;
}

Plan SoftChoice::settle() const {
  const Plan plan = likeliest_within_budget();
  const auto [limited, least] = std::pair(goal_.quantities()[0], goal_.quantities()[1]);
  std::vector<SumLimit> limits = {{predicted(limited), goal_.tolerated()}};
  if (limited == PlanQuantity::kDamage) limits.push_back({mean_damages_, goal_.tolerated() - mean_beyond_});
  const Plan better = exchanged(plan, values_of(least, mean_damages_), limits);
  // Shared costs are not in these sums.
  return goal_.is_met(evaluate(problem_, better)) ? better : plan;
}

}  // namespace mantissa
