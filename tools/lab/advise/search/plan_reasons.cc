#include "tools/lab/advise/search/plan_reasons.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "tools/lab/advise/search/plan_units.h"

namespace mantissa {
namespace {

int least_damage(const PlanUnit& unit) {
  const auto damage = [](const PlanTotals& option) { return option.damage; };
  return static_cast<int>(std::ranges::min_element(unit.options, {}, damage) - unit.options.begin());
}

class Reasons {
 public:
  Reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan)
      : problem_(problem), goal_(goal), plan_(plan), units_(problem) {
    cost_ = goal.budget == Budget::kMemory ? PlanQuantity::kBytes : PlanQuantity::kSeconds;
    UnitPlan most_exact;
    for (const PlanUnit& unit : units_.units()) {
      choice_.push_back(plan[unit.decisions.front()]);
      most_exact.push_back(least_damage(unit));
    }
    totals_ = units_.evaluate(choice_);
    most_exact_cost_ = quantity(units_.evaluate(most_exact), cost_);
  }

  std::vector<std::string> lines() const {
    std::vector<std::string> lines(problem_.decisions.size());
    for (int u = 0; u < units_.size(); ++u) {
      const std::string reason = reason_of(u);
      for (const int decision : units_.units()[u].decisions) lines[decision] = reason + company_of(u, decision);
    }
    return lines;
  }

 private:
  std::string_view option_name(int unit, int option) const {
    return problem_.decisions[units_.units()[unit].decisions.front()].options[option].name;
  }

  PlanTotals with(int unit, int option) const {
    UnitPlan other = choice_;
    other[unit] = option;
    return units_.evaluate(other);
  }

  std::string reason_of(int unit) const {
    const int kept = least_damage(units_.units()[unit]);
    return choice_[unit] == kept ? kept_reason(unit) : lowered_reason(unit, kept);
  }

  // The alternative that saves most for its damage is what was not taken.
  std::string kept_reason(int unit) const {
    std::optional<int> best;
    double best_ratio = 0;
    for (int option = 0; option < units_.options(unit); ++option) {
      const PlanTotals other = with(unit, option);
      const double saved = quantity(totals_, cost_) - quantity(other, cost_);
      const double ratio = saved / std::max(other.damage - totals_.damage, std::numeric_limits<double>::min());
      if (saved <= 0 || ratio <= best_ratio) continue;
      best = option;
      best_ratio = ratio;
    }
    const std::string_view own = option_name(unit, choice_[unit]);
    if (!best) {
      return fmt::format("kept {}: nothing here saves {}", own, cost_ == PlanQuantity::kBytes ? "memory" : "time");
    }
    const PlanTotals other = with(unit, *best);
    return fmt::format("kept {}: {} would cost {} for {}", own, option_name(unit, *best),
                       damage_change(unit, choice_[unit], *best),
                       to_text(cost_, quantity(totals_, cost_) - quantity(other, cost_)));
  }

  std::string lowered_reason(int unit, int kept) const {
    const PlanTotals before = with(unit, kept);
    const double saved = quantity(before, cost_) - quantity(totals_, cost_);
    const double share = most_exact_cost_ > 0 ? 100 * std::abs(saved) / most_exact_cost_ : 0;
    return fmt::format("{}: {} {} ({:.1f} %) against {}, costs {}; {}", option_name(unit, choice_[unit]),
                       saved >= 0 ? "saves" : "adds", to_text(cost_, std::abs(saved)), share, option_name(unit, kept),
                       damage_change(unit, kept, choice_[unit]), next_best(unit));
  }

  // With the standard error of what is between two options, where there is one.
  std::string damage_change(int unit, int from, int to) const {
    const std::vector<PlanTotals>& options = units_.units()[unit].options;
    const auto place = [](int option) { return static_cast<size_t>(option); };
    const double error = std::sqrt(options[place(from)].damage_variance + options[place(to)].damage_variance);
    const std::string text = to_text(PlanQuantity::kDamage, options[place(to)].damage - options[place(from)].damage);
    return error > 0.0 ? fmt::format("{} (+-{:.1g})", text, error) : text;
  }

  std::string next_best(int unit) const {
    std::optional<int> best;
    for (int option = 0; option < units_.options(unit); ++option) {
      if (option == choice_[unit]) continue;
      if (!best || rank(goal_, with(unit, option)) < rank(goal_, with(unit, *best))) best = option;
    }
    const PlanTotals other = with(unit, *best);
    const std::string_view name = option_name(unit, *best);
    const PlanQuantity limited = goal_.quantities()[0];
    if (goal_.is_met(totals_) && !goal_.is_met(other)) {
      return fmt::format("{} instead would exceed the budget by {}", name,
                         to_text(limited, quantity(other, limited) - goal_.limit));
    }
    return fmt::format("{} instead: {}, {}", name, change(cost_, other), change(PlanQuantity::kDamage, other));
  }

  std::string change(PlanQuantity what, const PlanTotals& other) const {
    const double difference = quantity(other, what) - quantity(totals_, what);
    return (difference < 0 ? "-" : "+") + to_text(what, std::abs(difference));
  }

  std::string company_of(int unit, int decision) const {
    const auto& members = units_.units()[unit].decisions;
    std::string text;
    for (const int other : members) {
      if (other == decision) continue;
      text += (text.empty() ? "; one choice with " : ", ") + problem_.decisions[other].name;
    }
    for (const PlanSharedCost& cost : problem_.shared_costs) {
      std::set<std::string_view> sharers;
      bool pays = false;
      for (const auto& [payer, option] : cost.payers) {
        if (plan_[payer] != option) continue;
        if (payer == decision) {
          pays = true;
        } else {
          sharers.insert(problem_.decisions[payer].name);
        }
      }
      if (pays && !sharers.empty()) {
        text += fmt::format("; shares {} with {}", cost.name, fmt::join(sharers, ", "));
      }
    }
    return text;
  }

  const PlanProblem& problem_;
  PlanGoal goal_;
  const Plan& plan_;
  PlanUnits units_;
  PlanQuantity cost_ = PlanQuantity::kSeconds;
  UnitPlan choice_;
  PlanTotals totals_;
  double most_exact_cost_ = 0;
};

}  // namespace

std::vector<std::string> plan_reasons(const PlanProblem& problem, const PlanGoal& goal, const Plan& plan) {
  evaluate(problem, plan);
  return Reasons(problem, goal, plan).lines();
}

}  // namespace mantissa
