#include "tools/lab/advise/search/pareto_labels.h"

#include <algorithm>
#include <utility>

#include "tools/lab/advise/search/label_list.h"

namespace mantissa {
namespace {

struct Step {
  int parent = 0;
  int option = 0;
};

class Search {
 public:
  Search(const PlanUnits& units, const OpenCosts& open_costs, const LabelSearch& search)
      : units_(units), open_costs_(open_costs), search_(search) {
    rest_.assign(units.size() + 1, 0);
    for (int u = units.size() - 1; u >= 0; --u) {
      double least = std::numeric_limits<double>::infinity();
      for (const PlanTotals& option : units.units()[u].options) {
        least = std::min(least, quantity(option, search.order[0]));
      }
      rest_[u] = rest_[u + 1] + least;
    }
  }

  LabelList run() {
    std::vector<PlanLabel> labels{PlanLabel{}};
    std::vector<int> turns{0};
    for (int u = 0; u < units_.size(); ++u) {
      labels = reduced(extended(labels, turns, u));
      turns = turns_of(labels);
      std::vector<Step>& steps = steps_.emplace_back();
      for (const PlanLabel& label : labels) steps.push_back({label.parent, label.option});
    }
    for (size_t i = 0; i < labels.size(); ++i) list_.plans.push_back(plan_of(static_cast<int>(i)));
    return std::move(list_);
  }

 private:
  std::vector<PlanLabel> extended(const std::vector<PlanLabel>& labels, const std::vector<int>& turns, int u) const {
    std::vector<PlanLabel> result;
    for (size_t i = 0; i < labels.size(); ++i) {
      for (int option = 0; option < units_.options(u); ++option) {
        PlanLabel label = labels[i];
        const OpenCosts::Step step = open_costs_.step(u, option, label.paid);
        for (int k = 0; k < 3; ++k) label.sums[k] += quantity(step.cost, search_.order[k]);
        label.paid = step.paid;
        label.parent = static_cast<int>(i);
        label.parent_turn = turns[i];
        label.option = option;
        if (can_be_best(label, u + 1)) result.push_back(label);
      }
    }
    return result;
  }

  bool can_be_best(const PlanLabel& label, int next) const {
    // Sums of the rest in another order may be off by their last bits.
    if ((label.sums[0] + rest_[next]) * (1 - 1e-13) > search_.limit) return false;
    return search_.bound == nullptr ||
           search_.bound->least(label.sums[0], label.sums[1], next, label.paid) <= search_.incumbent;
  }

  std::vector<PlanLabel> reduced(std::vector<PlanLabel> labels) {
    std::ranges::sort(labels, [](const PlanLabel& a, const PlanLabel& b) { return a.key() < b.key(); });
    std::vector<std::vector<PlanLabel>> groups;  // by their sets
    for (const PlanLabel& label : labels) {
      if (groups.empty() || groups.back().front().paid != label.paid) groups.emplace_back();
      groups.back().push_back(label);
    }
    int64_t kept = 0;
    for (auto& group : groups) {
      drop_dominated(group, search_.criteria);
      kept += static_cast<int64_t>(group.size());
    }
    if (kept > search_.most_labels) thin_all(groups);
    std::vector<PlanLabel> result;
    for (const auto& group : groups) result.insert(result.end(), group.begin(), group.end());
    return result;
  }

  void thin_all(std::vector<std::vector<PlanLabel>>& groups) {
    const double most = static_cast<double>(search_.most_labels) / 2 / static_cast<double>(groups.size());
    std::array<double, 2> widest{};
    for (auto& group : groups) {
      const std::array<double, 2> width = thin(group, search_.criteria, most);
      for (int d = 0; d < 2; ++d) widest[d] = std::max(widest[d], width[d]);
    }
    for (int d = 0; d < 2; ++d) list_.gaps[d] += widest[d];
  }

  // Of each label the place of its plan among those of the list, option by option from the first unit on.
  static std::vector<int> turns_of(const std::vector<PlanLabel>& labels) {
    std::vector<int> places(labels.size()), turns(labels.size());
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int>(i);
    const auto plan_key = [&](int i) { return std::pair(labels[i].parent_turn, labels[i].option); };
    std::ranges::sort(places, [&](int a, int b) { return plan_key(a) < plan_key(b); });
    for (size_t i = 0; i < places.size(); ++i) turns[places[i]] = static_cast<int>(i);
    return turns;
  }

  UnitPlan plan_of(int label) const {
    UnitPlan plan(units_.size());
    for (int u = units_.size() - 1; u >= 0; --u) {
      plan[u] = steps_[u][label].option;
      label = steps_[u][label].parent;
    }
    return plan;
  }

  const PlanUnits& units_;
  const OpenCosts& open_costs_;
  const LabelSearch& search_;
  std::vector<double> rest_;              // the least of the first sum from a unit on, without shared costs
  std::vector<std::vector<Step>> steps_;  // by unit
  LabelList list_;
};

}  // namespace

LabelList undominated_plans(const PlanUnits& units, const OpenCosts& open_costs, const LabelSearch& search) {
  return Search(units, open_costs, search).run();
}

UnitPlan least_budget_plan(const PlanUnits& units, const OpenCosts& open_costs, const PlanGoal& goal) {
  return undominated_plans(units, open_costs, {.order = goal.quantities(), .criteria = 1}).plans.front();
}

}  // namespace mantissa
