// Exact search: dynamic programming over the decisions, with lists of undominated partial plans in place of rounded
// costs (Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital Allocation", Management Science 15(9), 1969).
//
// A label is a choice for the first decisions with its three sums. Costs add up and are not negative, so a label can be
// dropped if another is no worse in any sum that counts. The first of plans with equal sums stays, decision by
// decision.
//
// If more than `most_labels` labels are left after a decision, the list is thinned: the range of each sum but the first
// is divided into equal intervals, and the label with the least first sum stays for each interval (or cell). The
// intervals of all decisions add up to the gap: kept plans are off by at most that much in these sums. The first sum,
// which is the limited one, is never rounded, so a plan that meets the budget is still found to meet it.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "tools/lab/advise/search/solver.h"

namespace mantissa {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// Bounds the best plan that a partial one can become, by the Lagrangian relaxation of the budget: a unit of the limited
// quantity costs lambda of the minimized one. For every lambda >= 0
//
//   min over plans { least : limited <= limit }  >=  min over plans (least + lambda limited) - lambda limit
//
// (Fisher, "The Lagrangian Relaxation Method for Solving Integer Programming Problems", Management Science 27(1),
// 1981), and the minimum on the right is taken decision by decision. The lambda with the largest right side is used.
class LagrangeBound {
 public:
  LagrangeBound(const PlanProblem& problem, const PlanGoal& goal) : problem_(problem), goal_(goal) {
    // The bound is concave in lambda; its slope is the excess of the relaxed plan over the limit.
    double low = 0, high = 0;
    if (exceeds(0)) {
      high = 1e-30;  // seconds, bytes and nats are many orders of magnitude apart
      while (high < 1e60 && exceeds(high)) {
        low = high;
        high *= 16;
      }
      for (int i = 0; i < 60; ++i) {
        const double middle = 0.5 * (low + high);
        (exceeds(middle) ? low : high) = middle;
      }
    }
    lambda_ = high < 1e60 ? high : 0;  // every lambda is valid
    rest_.assign(problem.size() + 1, 0);
    for (size_t i = problem.size(); i-- > 0;) {
      double least = kUnbounded;
      for (const PlanOption& option : problem[i].options) least = std::min(least, value(option, lambda_));
      rest_[i] = rest_[i + 1] + least;
    }
  }

  // A lower bound of the minimized quantity for all plans that begin with these sums, continue at decision `next` and
  // meet the budget. Rounding is on the safe side.
  double least(double limited_sum, double least_sum, size_t next) const {
    const double value = least_sum + lambda_ * limited_sum + rest_[next], budget = lambda_ * goal_.tolerated();
    return value - budget - 1e-12 * (value + budget);
  }
  // The best plan that was met in the search for lambda; empty if none met the budget.
  const Plan& plan() const { return plan_; }

 private:
  double value(const PlanOption& option, double lambda) const {
    const auto [limited, least, third] = goal_.quantities();
    return quantity(option.totals(), least) + lambda * quantity(option.totals(), limited);
  }

  bool exceeds(double lambda) {
    Plan plan;
    for (const auto& [name, options] : problem_) {
      const auto value_of = [&](const PlanOption& option) { return value(option, lambda); };
      plan.push_back(static_cast<int>(std::ranges::min_element(options, {}, value_of) - options.begin()));
    }
    const PlanTotals totals = evaluate(problem_, plan);
    if (!goal_.is_met(totals)) return true;
    if (plan_.empty() || rank(goal_, totals) < rank(goal_, evaluate(problem_, plan_))) plan_ = plan;
    return false;
  }

  const PlanProblem& problem_;
  const PlanGoal goal_;
  double lambda_ = 0;
  std::vector<double> rest_;  // the least value from a decision on
  Plan plan_;
};

struct LabelSearch {
  std::array<PlanQuantity, 3> order{};  // order of the sums
  int criteria = 2;                     // sums that count: 2 or 3
  int64_t most_labels = 0;
  // For a goal with these quantities: drops labels that cannot become as good as `incumbent`.
  const LagrangeBound* bound = nullptr;
  double limit = kUnbounded, incumbent = kUnbounded;
};

struct LabelList {
  std::vector<Plan> plans{};     // by rising sums
  std::array<double, 2> gaps{};  // second and third sum
};

struct Step {
  int parent = 0;  // place in the list of the decision before
  int option = 0;
};
struct Label : Step {
  std::array<double, 3> sums{};
};

// `labels` are sorted by their sums: a label is compared with those before it, which are no worse in the first one.
void drop_dominated(std::vector<Label>& labels, int criteria) {
  std::map<double, double> stairs;  // third sums by second sum: falling as the second rises
  std::erase_if(labels, [&](const Label& label) {
    const double second = label.sums[1], third = criteria == 3 ? label.sums[2] : 0;
    const auto after = stairs.upper_bound(second);
    if (after != stairs.begin() && std::prev(after)->second <= third) return true;
    auto next = stairs.lower_bound(second);
    while (next != stairs.end() && next->second >= third) next = stairs.erase(next);
    stairs[second] = third;
    return false;
  });
}

// Leaves at most `most` labels, one for each cell; returns the widths of the intervals.
std::array<double, 2> thin(std::vector<Label>& labels, int criteria, double most) {
  const int dimensions = criteria - 1;
  const double intervals = std::max(1.0, std::floor(std::pow(most, 1.0 / dimensions)));
  std::array<double, 2> least{}, width{};
  for (int d = 0; d < dimensions; ++d) {
    const auto [low, high] = std::ranges::minmax(labels, {}, [&](const Label& label) { return label.sums[d + 1]; });
    least[d] = low.sums[d + 1];
    width[d] = (high.sums[d + 1] - least[d]) / intervals;
  }
  std::set<std::array<int64_t, 2>> cells;
  std::erase_if(labels, [&](const Label& label) {
    std::array<int64_t, 2> cell{};
    for (int d = 0; d < dimensions; ++d) {
      // The last interval includes its upper end.
      if (width[d] > 0)
        cell[d] = static_cast<int64_t>(std::min((label.sums[d + 1] - least[d]) / width[d], intervals - 1));
    }
    return !cells.insert(cell).second;
  });
  return width;
}

LabelList undominated_plans(const PlanProblem& problem, const LabelSearch& search) {
  LabelList list;
  std::vector<double> rest(problem.size() + 1, 0);  // the least of the first sum from a decision on
  for (size_t i = problem.size(); i-- > 0;) {
    const PlanOption& least = problem[i].options[static_cast<size_t>(least_option(problem[i], search.order[0]))];
    rest[i] = rest[i + 1] + quantity(least.totals(), search.order[0]);
  }
  const auto can_be_best = [&](const Label& label, size_t next) {
    // Sums in another order may differ in their last bits.
    if ((label.sums[0] + rest[next]) * (1 - 1e-13) > search.limit) return false;
    return search.bound == nullptr || search.bound->least(label.sums[0], label.sums[1], next) <= search.incumbent;
  };
  std::vector<Label> parents{Label{}};   // in the order of their plans
  std::vector<std::vector<Step>> steps;  // by decision
  for (size_t i = 0; i < problem.size(); ++i) {
    std::vector<Label> labels;
    for (size_t parent = 0; parent < parents.size(); ++parent) {
      for (size_t option = 0; option < problem[i].options.size(); ++option) {
        Label label{{static_cast<int>(parent), static_cast<int>(option)}, parents[parent].sums};
        const PlanTotals cost = problem[i].options[option].totals();
        for (int k = 0; k < 3; ++k) label.sums[k] += quantity(cost, search.order[k]);
        if (can_be_best(label, i + 1)) labels.push_back(label);
      }
    }
    std::ranges::stable_sort(labels, {}, &Label::sums);
    drop_dominated(labels, search.criteria);
    if (std::ssize(labels) > search.most_labels) {
      const auto width = thin(labels, search.criteria, static_cast<double>(search.most_labels) / 2);
      for (int d = 0; d < 2; ++d) list.gaps[d] += width[d];
    }
    std::ranges::sort(labels, {}, [](const Label& label) { return std::pair(label.parent, label.option); });
    steps.emplace_back(labels.begin(), labels.end());
    parents = std::move(labels);
  }
  std::ranges::stable_sort(parents, {}, &Label::sums);
  for (Step step : parents) {
    Plan& plan = list.plans.emplace_back(problem.size());
    for (size_t i = problem.size(); i-- > 0;) {
      plan[i] = step.option;
      if (i > 0) step = steps[i - 1][static_cast<size_t>(step.parent)];
    }
  }
  return list;
}

}  // namespace

// The optimum, or with thinned lists a plan within the gap.
FoundPlan knapsack(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  const auto rank_of = [&](const Plan& plan) { return rank(goal, evaluate(problem, plan)); };
  const PlanQuantity least = goal.quantities()[1];
  const LagrangeBound bound(problem, goal);
  Plan best = nearest_plan(problem, goal);
  for (const Plan& plan : {greedy(problem, goal, settings).plan, bound.plan()}) {
    if (!plan.empty() && rank_of(plan) < rank_of(best)) best = plan;
  }
  LabelList list = undominated_plans(problem, {.order = goal.quantities(),
                                               .most_labels = settings.most_labels,
                                               .bound = &bound,
                                               .limit = goal.tolerated(),
                                               .incumbent = quantity(evaluate(problem, best), least)});
  // Thinned lists may have lost every plan as good as `best`. The list's plans come first among equals.
  list.plans.push_back(best);
  best = std::ranges::min(list.plans, {}, rank_of);
  const double above_bound = std::max(0.0, quantity(evaluate(problem, best), least) - bound.least(0, 0, 0));
  return {.plan = best, .gap = list.gaps[0] == 0 ? 0.0 : std::min(list.gaps[0], above_bound)};
}

ParetoFront pareto_front(const PlanProblem& problem, int64_t most_labels) {
  check_problem(problem);
  using enum PlanQuantity;
  LabelList list =
      undominated_plans(problem, {.order = {kSeconds, kDamage, kBytes}, .criteria = 3, .most_labels = most_labels});
  return {.plans = std::move(list.plans), .damage_gap = list.gaps[0], .bytes_gap = list.gaps[1]};
}

}  // namespace mantissa
