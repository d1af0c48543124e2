#include "tools/advise/search/pareto_labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "tools/advise/search/label_list.h"
#include "tools/advise/search/open_costs.h"

namespace mantissa {
namespace {

struct Step {
  int parent = 0;
  int option = 0;
};

class Search {
 public:
  Search(const PlanUnits& units, const LabelSearch& search) : units_(units), search_(search), open_costs_(units) {
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
        add(label, units_.units()[u].options[option]);
        for (const int shared : units_.paid_by(u, option)) {
          if ((label.paid & open_costs_.bit(shared)) == 0) add(label, units_.shared_costs()[shared].cost);
          label.paid |= open_costs_.bit(shared);
        }
        label.paid &= ~open_costs_.closing(u);
        label.parent = static_cast<int>(i);
        label.parent_turn = turns[i];
        label.option = option;
        if (search_.bound != nullptr) label.value += search_.bound->value(u, option);
        if (can_be_best(label, u + 1)) result.push_back(label);
      }
    }
    return result;
  }

  void add(PlanLabel& label, const PlanTotals& totals) const {
    for (int k = 0; k < 3; ++k) label.sums[k] += quantity(totals, search_.order[k]);
  }

  bool can_be_best(const PlanLabel& label, int next) const {
    // Sums of the rest in another order may be off by their last bits.
    if ((label.sums[0] + rest_[next]) * (1 - 1e-13) > search_.limit) return false;
    return search_.bound == nullptr || search_.bound->least(label.value, next) <= search_.incumbent;
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
    const auto sets = static_cast<int64_t>(groups.size());
    if (sets > search_.most_labels) {
      throw ConfigError(
          fmt::format("[plan] shared costs overlap in {} ways at a time, and the search keeps {} labels; "
                      "leave out the smallest, or keep more labels",
                      sets, search_.most_labels));
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
  const LabelSearch& search_;
  OpenCosts open_costs_;
  std::vector<double> rest_;              // the least of the first sum from a unit on, without shared costs
  std::vector<std::vector<Step>> steps_;  // by unit
  LabelList list_;
};

}  // namespace

LabelList undominated_plans(const PlanUnits& units, const LabelSearch& search) { return Search(units, search).run(); }

UnitPlan least_budget_plan(const PlanUnits& units, const PlanGoal& goal) {
  return undominated_plans(units, {.order = goal.quantities(), .criteria = 1}).plans.front();
}

}  // namespace mantissa
