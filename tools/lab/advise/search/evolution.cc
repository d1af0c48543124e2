#include "tools/lab/advise/search/evolution.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "tools/lab/advise/search/budget_repair.h"
#include "tools/lab/advise/search/draws.h"

namespace mantissa {
namespace {

constexpr int kParents = 64;
constexpr int kChildren = 64;

using Ranked = std::pair<std::array<double, 4>, UnitPlan>;  // equal ranks are told apart by the plan

class Population {
 public:
  Population(const PlanUnits& units, const PlanGoal& goal, uint64_t seed) : units_(units), goal_(goal), draws_(seed) {
    int most_options = 0;
    for (int u = 0; u < units.size(); ++u) most_options = std::max(most_options, units.options(u));
    for (int option = 0; option < most_options; ++option) {
      UnitPlan plan;
      for (int u = 0; u < units.size(); ++u) plan.push_back(std::min(option, units.options(u) - 1));
      insert(std::move(plan));
    }
    for (int i = 0; i < kParents; ++i) {
      UnitPlan plan;
      for (int u = 0; u < units.size(); ++u) plan.push_back(draws_.below(units.options(u)));
      insert(std::move(plan));
    }
    select();
  }

  void next_generation() {
    for (int i = 0; i < kChildren; ++i) {
      const UnitPlan& a = parent();
      const UnitPlan& b = parent();
      UnitPlan child;
      for (int u = 0; u < units_.size(); ++u) {
        child.push_back((draws_.word() & 1) != 0 ? a[u] : b[u]);
        if (draws_.below(units_.size()) == 0) child.back() = draws_.below(units_.options(u));
      }
      children_.push_back(std::move(child));
    }
    for (UnitPlan& child : children_) insert(std::move(child));
    children_.clear();
    select();
  }

  const UnitPlan& best() const { return plans_.begin()->second; }
  int64_t tried() const { return tried_; }

 private:
  const UnitPlan& parent() { return std::next(plans_.begin(), draws_.below(static_cast<int>(plans_.size())))->second; }

  void insert(UnitPlan plan) {
    repair_budget(units_, goal_, plan, draws_);
    ++tried_;
    const auto plan_rank = rank(goal_, units_.evaluate(plan));
    plans_.insert({plan_rank, std::move(plan)});
  }

  void select() {
    while (plans_.size() > kParents) plans_.erase(std::prev(plans_.end()));
  }

  const PlanUnits& units_;
  PlanGoal goal_;
  Draws draws_;
  std::set<Ranked> plans_;  // no plan is in it twice
  std::vector<UnitPlan> children_;
  int64_t tried_ = 0;
};

}  // namespace

PlanSolver::Found Evolution::search(const PlanUnits& units, const PlanGoal& goal) const {
  Population population(units, goal, seed_);
  for (int i = 0; i < generations_; ++i) population.next_generation();
  return {.choice = population.best(), .plans_tried = population.tried()};
}

}  // namespace mantissa
