#include "tools/lab/advise/search/plan_units.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace mantissa {
namespace {

// Sets of integers that are joined; each is known by its smallest member.
class JoinedSets {
 public:
  explicit JoinedSets(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0); }
  int find(int i) const {
    while (parent_[i] != i) i = parent_[i];
    return i;
  }
  void join(int a, int b) {
    a = find(a);
    b = find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<int> parent_;
};

}  // namespace

int least_option(const PlanUnit& unit, PlanQuantity what) {
  const auto amount = [&](const PlanTotals& option) { return quantity(option, what); };
  return static_cast<int>(std::ranges::min_element(unit.options, {}, amount) - unit.options.begin());
}

PlanUnits::PlanUnits(const PlanProblem& problem) : decisions_(problem.decisions.size()) {
  check_problem(problem);
  const auto by_name = [](const auto& things) {
    std::vector<int> order(things.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, [&](int a, int b) { return things[a].name < things[b].name; });
    return order;
  };
  const std::vector<int> order = by_name(problem.decisions), cost_order = by_name(problem.shared_costs);
  std::vector<int> place(order.size());  // of a decision among the names
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int>(i);

  // Both by place: what is a unit, and what hangs together by groups and shared costs.
  JoinedSets unit_of(order.size());
  for (const auto& group : problem.groups) {
    for (const int member : group) unit_of.join(place[group.front()], place[member]);
  }
  JoinedSets component_of = unit_of;
  for (const auto& cost : problem.shared_costs) {
    for (const auto& payer : cost.payers) component_of.join(place[cost.payers.front().decision], place[payer.decision]);
  }

  std::map<std::pair<int, int>, std::vector<int>> members;  // by component and unit, in the order of names
  for (size_t i = 0; i < order.size(); ++i) {
    const int p = static_cast<int>(i);
    members[{component_of.find(p), unit_of.find(p)}].push_back(order[i]);
  }
  std::vector<int> unit_at(order.size());  // by decision
  for (const auto& [key, decisions] : members) {
    PlanUnit unit{.decisions = decisions};
    unit.options.resize(problem.decisions[decisions.front()].options.size());
    for (const int decision : decisions) {
      unit_at[decision] = static_cast<int>(units_.size());
      for (size_t o = 0; o < unit.options.size(); ++o) {
        unit.options[o] += totals_of(problem.decisions[decision].options[o]);
      }
    }
    units_.push_back(std::move(unit));
  }

  for (const int i : cost_order) {
    const PlanSharedCost& cost = problem.shared_costs[i];
    std::set<std::pair<int, int>> payers;
    for (const auto& payer : cost.payers) payers.insert({unit_at[payer.decision], payer.option});
    if (payers.empty()) continue;
    const PlanTotals totals{.seconds = cost.seconds, .bytes = cost.bytes};
    if (payers.begin()->first == payers.rbegin()->first) {
      for (const auto& [unit, option] : payers) units_[unit].options[option] += totals;
      continue;
    }
    UnitSharedCost shared{.cost = totals};
    for (const auto& [unit, option] : payers) shared.payers.push_back({unit, option});
    shared_costs_.push_back(std::move(shared));
  }

  paid_by_.resize(units_.size());
  for (size_t u = 0; u < units_.size(); ++u) paid_by_[u].resize(units_[u].options.size());
  for (size_t i = 0; i < shared_costs_.size(); ++i) {
    for (const auto& [unit, option] : shared_costs_[i].payers) paid_by_[unit][option].push_back(static_cast<int>(i));
  }
}

PlanTotals PlanUnits::evaluate(const UnitPlan& choice) const {
  PlanTotals totals;
  for (size_t u = 0; u < units_.size(); ++u) totals += units_[u].options[choice[u]];
  for (const UnitSharedCost& shared : shared_costs_) {
    const auto chosen = [&](const PlanChoice& payer) { return choice[payer.decision] == payer.option; };
    if (std::ranges::any_of(shared.payers, chosen)) totals += shared.cost;
  }
  return totals;
}

Plan PlanUnits::plan_of(const UnitPlan& choice) const {
  Plan plan(decisions_);
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const int decision : units_[u].decisions) plan[decision] = choice[u];
  }
  return plan;
}

}  // namespace mantissa
