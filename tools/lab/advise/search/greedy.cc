#include "tools/lab/advise/search/greedy.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace mantissa {
namespace {

using Move = std::vector<PlanChoice>;  // units and what they take

std::vector<Move> moves_of(const PlanUnits& units) {
  std::vector<Move> moves;
  for (int u = 0; u < units.size(); ++u) {
    for (int option = 0; option < units.options(u); ++option) moves.push_back({{u, option}});
  }
  for (const UnitSharedCost& shared : units.shared_costs()) {
    int most_options = 0;
    for (const PlanChoice& payer : shared.payers) most_options = std::max(most_options, units.options(payer.decision));
    for (int option = 0; option < most_options; ++option) {
      Move& move = moves.emplace_back();
      for (const PlanChoice& payer : shared.payers) {
        move.push_back({payer.decision, std::min(option, units.options(payer.decision) - 1)});
      }
    }
  }
  return moves;
}

// A plan and its totals, from which those of similar plans follow at the cost of what is different in them.
class MovingPlan {
 public:
  MovingPlan(const PlanUnits& units, UnitPlan plan)
      : units_(units), plan_(std::move(plan)), payers_(units.shared_costs().size()) {
    for (int u = 0; u < units.size(); ++u) {
      for (const int shared : units.paid_by(u, plan_[u])) ++payers_[shared];
    }
    totals_ = units.evaluate(plan_);
  }

  const UnitPlan& plan() const { return plan_; }
  const PlanTotals& totals() const { return totals_; }

  // Within the rounding of sums.
  PlanTotals totals_behind(const Move& move) {
    PlanTotals totals = totals_;
    Move back;
    for (const auto& [unit, option] : move) {
      back.push_back({unit, plan_[unit]});
      change(unit, option, totals);
    }
    PlanTotals ignored;
    for (const auto& [unit, option] : back) change(unit, option, ignored);
    return totals;
  }

  void make(const Move& move) {
    PlanTotals ignored;
    for (const auto& [unit, option] : move) change(unit, option, ignored);
    totals_ = units_.evaluate(plan_);
  }

 private:
  void change(int unit, int option, PlanTotals& totals) {
    add(totals, units_.units()[unit].options[plan_[unit]], -1);
    for (const int shared : units_.paid_by(unit, plan_[unit])) {
      if (--payers_[shared] == 0) add(totals, units_.shared_costs()[shared].cost, -1);
    }
    plan_[unit] = option;
    add(totals, units_.units()[unit].options[option], 1);
    for (const int shared : units_.paid_by(unit, option)) {
      if (++payers_[shared] == 1) add(totals, units_.shared_costs()[shared].cost, 1);
    }
  }

  static void add(PlanTotals& totals, const PlanTotals& other, double sign) {
    totals.seconds += sign * other.seconds;
    totals.bytes += sign * other.bytes;
    totals.damage += sign * other.damage;
  }

  const PlanUnits& units_;
  UnitPlan plan_;
  std::vector<int> payers_;  // by shared cost: how many units pay it
  PlanTotals totals_;
};

// What sums that were made in another order may differ by is no gain.
bool is_gain(double gain, double total) { return gain > 1e-12 * total; }

class Descent {
 public:
  Descent(const PlanUnits& units, const PlanGoal& goal)
      : goal_(goal), moves_(moves_of(units)), plan_(units, first_plan(units, goal.quantities()[1])) {}

  UnitPlan run() {
    const auto [limited, least, third] = goal_.quantities();
    const auto towards_budget = [&](const PlanTotals& before, const PlanTotals& after) {
      const double saved = quantity(before, limited) - quantity(after, limited);
      if (!is_gain(saved, quantity(before, limited))) return kNoMove;
      const double needed = quantity(before, limited) - goal_.limit;
      return score(std::min(saved, needed), quantity(after, least) - quantity(before, least));
    };
    const auto within_budget = [&](const PlanTotals& before, const PlanTotals& after) {
      const double gain = quantity(before, least) - quantity(after, least);
      if (!is_gain(gain, quantity(before, least)) || !goal_.is_met(after)) return kNoMove;
      return score(gain, quantity(after, limited) - quantity(before, limited));
    };
    while (!goal_.is_met(plan_.totals()) && make_best_move(towards_budget)) continue;
    UnitPlan met = plan_.plan();
    while (goal_.is_met(plan_.totals())) {
      met = plan_.plan();
      if (!make_best_move(within_budget)) break;
    }
    return met;
  }

 private:
  using Score = std::pair<bool, double>;
  static constexpr Score kNoMove{false, 0.0};

  static UnitPlan first_plan(const PlanUnits& units, PlanQuantity least) {
    UnitPlan plan;
    for (const PlanUnit& unit : units.units()) plan.push_back(least_option(unit, least));
    return plan;
  }

  // gain per cost; of what costs nothing the gain decides.
  static Score score(double gain, double cost) { return {cost <= 0, cost <= 0 ? gain : gain / cost}; }

  // Makes the move with the highest score_of(totals before, totals behind it), of equals the first; false where there
  // is none.
  template <typename F>
  bool make_best_move(const F& score_of) {
    Score best = kNoMove;
    const Move* best_move = nullptr;
    for (const Move& move : moves_) {
      const Score move_score = score_of(plan_.totals(), plan_.totals_behind(move));
      if (move_score <= best) continue;
      best = move_score;
      best_move = &move;
    }
    if (best_move == nullptr) return false;
    plan_.make(*best_move);
    return true;
  }

  PlanGoal goal_;
  std::vector<Move> moves_;
  MovingPlan plan_;
};

}  // namespace

UnitPlan greedy_plan(const PlanUnits& units, const PlanGoal& goal) { return Descent(units, goal).run(); }

PlanSolver::Found Greedy::search(const PlanUnits& units, const PlanGoal& goal) const {
  return {.choice = greedy_plan(units, goal)};
}

}  // namespace mantissa
