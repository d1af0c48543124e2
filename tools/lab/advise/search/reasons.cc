#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "tools/lab/advise/search/solver.h"

namespace mantissa {
namespace {

// The first of the options with the least of a quantity, for one decision and for all.
int least_option(const PlanDecision& decision, PlanQuantity what) {
  const auto amount = [&](const PlanOption& option) { return quantity(option.totals(), what); };
  return static_cast<int>(std::ranges::min_element(decision.options, {}, amount) - decision.options.begin());
}

Plan least_plan(const PlanProblem& problem, PlanQuantity what) {
  Plan plan;
  for (const PlanDecision& decision : problem) plan.push_back(least_option(decision, what));
  return plan;
}

class Reasons {
 public:
  Reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan)
      : problem_(problem), goal_(goal), plan_(plan), totals_(evaluate(problem, plan)) {
    exact_cost_ = cost_of(evaluate(problem, least_plan(problem, PlanQuantity::kDamage)));
  }

  std::string reason_of(size_t decision) const {
    const int kept = least_option(problem_[decision], PlanQuantity::kDamage);
    return plan_[decision] == kept ? kept_reason(decision) : lowered_reason(decision, kept);
  }

 private:
  double cost_of(const PlanTotals& totals) const { return quantity(totals, goal_.cost()); }

  PlanTotals with(size_t decision, int option) const {
    Plan other = plan_;
    other[decision] = option;
    return evaluate(problem_, other);
  }

  // Names the alternative that saves most for its damage.
  std::string kept_reason(size_t decision) const {
    const auto& options = problem_[decision].options;
    int best = -1;
    double best_ratio = 0, best_saved = 0;
    for (int option = 0; option < std::ssize(options); ++option) {
      const PlanTotals other = with(decision, option);
      const double saved = cost_of(totals_) - cost_of(other);
      const double ratio = saved / std::max(other.damage - totals_.damage, std::numeric_limits<double>::min());
      if (saved > 0 && ratio > best_ratio) std::tie(best, best_ratio, best_saved) = std::tuple(option, ratio, saved);
    }
    const std::string kept = "kept " + options[plan_[decision]].name;
    if (best < 0) {
      return fmt::format("{}: nothing here saves {}", kept, name(goal_.cost()));
    }
    return fmt::format("{}: {} would cost {} for {}", kept, options[best].name,
                       damage_change(options[plan_[decision]], options[best]), to_text(goal_.cost(), best_saved));
  }

  std::string lowered_reason(size_t decision, int kept) const {
    const PlanOption &from = problem_[decision].options[kept], &to = problem_[decision].options[plan_[decision]];
    const double saved = cost_of(with(decision, kept)) - cost_of(totals_);
    const std::string change = (saved >= 0 ? "saves " : "adds ") + to_text(goal_.cost(), std::abs(saved));
    // Costs are relative to the least of each decision, so that there may be nothing to take a share of.
    const std::string against =
        exact_cost_ > 0 ? fmt::format("({:.1f} %) against {}", 100 * std::abs(saved) / exact_cost_, from.name)
                        : fmt::format("against {}, which takes the least {}", from.name, name(goal_.cost()));
    return fmt::format("{}: {} {}, costs {}; {}", to.name, change, against, damage_change(from, to),
                       next_best(decision));
  }

  // With the standard error of the difference, if there is one.
  static std::string damage_change(const PlanOption& from, const PlanOption& to) {
    const double error = std::hypot(from.damage_error, to.damage_error);
    const std::string text = to_text(PlanQuantity::kDamage, to.damage - from.damage);
    return error > 0.0 ? fmt::format("{} (+-{:.1g})", text, error) : text;
  }

  std::string next_best(size_t decision) const {
    const auto& options = problem_[decision].options;
    const auto rank_of = [&](int option) { return rank(goal_, with(decision, option)); };
    int best = plan_[decision] == 0 ? 1 : 0;
    for (int option = best + 1; option < std::ssize(options); ++option) {
      if (option != plan_[decision] && rank_of(option) < rank_of(best)) best = option;
    }
    const PlanTotals other = with(decision, best);
    const PlanQuantity limited = goal_.budget;
    if (goal_.is_met(totals_) && !goal_.is_met(other)) {
      return fmt::format("{} instead would exceed the budget by {}", options[best].name,
                         to_text(limited, quantity(other, limited) - goal_.limit));
    }
    const auto change = [&](PlanQuantity what) {
      const double difference = quantity(other, what) - quantity(totals_, what);
      return (difference < 0 ? "-" : "+") + to_text(what, std::abs(difference));
    };
    return fmt::format("{} instead: {}, {}", options[best].name, change(goal_.cost()), change(PlanQuantity::kDamage));
  }

  const PlanProblem& problem_;
  const PlanGoal goal_;
  const Plan& plan_;
  const PlanTotals totals_;
  double exact_cost_ = 0;
};

}  // namespace

std::vector<std::string> plan_reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan) {
  const Reasons reasons(problem, goal, plan);
  std::vector<std::string> lines;
  for (size_t i = 0; i < problem.size(); ++i) lines.push_back(reasons.reason_of(i));
  return lines;
}

}  // namespace mantissa
