// Exact search: dynamic programming over the decisions, with lists of undominated partial plans in place of rounded
// costs (Nemhauser and Ullmann, "Discrete Dynamic Programming and Capital Allocation", Management Science 15(9), 1969).
//
// A label is a choice for the first decisions with its sums. Costs add up and are not negative, so a label can be
// dropped if another is no worse in any sum that counts. The first of plans with equal sums stays, decision by
// decision.
//
// If more than `most_labels` labels are left after a decision, the list is thinned: the range of each sum but the first
// is divided into equal intervals, and the label with the least first sum stays for each interval (or cell). The
// intervals of all decisions add up to the gap: kept plans are off by at most the gap in these sums. The first sum, of
// the limited quantity, is never rounded, so a plan that meets the budget is still found to meet it.

#include "tools/lab/advise/search/solver.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <tuple>

namespace mantissa {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();

// The plan with the least of the limited quantity; of those the best.
Plan nearest_plan(const PlanProblem& problem, const PlanGoal& goal) {
  const auto key = [&](const PlanOption& option) { return rank({.budget = goal.budget, .limit = 0}, option.totals()); };
  Plan plan;
  for (const auto& [name, options] : problem) {
    plan.push_back(static_cast<int>(std::ranges::min_element(options, {}, key) - options.begin()));
  }
  return plan;
}

// The least of a sum over the decisions from each one on: 0 after the last.
std::vector<double> least_of_rest(const PlanProblem& problem, const std::function<double(const PlanOption&)>& part) {
  std::vector<double> rest(problem.size() + 1, 0.0);
  for (size_t i = problem.size(); i-- > 0;) {
    rest[i] = rest[i + 1] + std::ranges::min(problem[i].options | std::views::transform(part));
  }
  return rest;
}

// Bounds the best completion of a partial plan, by the Lagrangian relaxation of the budget: a unit of the limited
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
    rest_ = least_of_rest(problem, [&](const PlanOption& option) { return value(option, lambda_); });
  }

  // A lower bound of the minimized quantity for all plans that begin with these sums, continue at decision `next` and
  // meet the budget. Rounding is on the safe side.
  double least(double limited_sum, double least_sum, size_t next) const {
    const double value = least_sum + lambda_ * limited_sum + rest_[next], budget = lambda_ * goal_.tolerated();
    return value - budget - 1e-12 * (value + budget);
  }
  // The best plan seen in the search for lambda; empty if none met the budget.
  const Plan& plan() const { return plan_; }

 private:
  double value(const PlanOption& option, double lambda) const {
    const auto [limited, least, third, fourth] = goal_.quantities();
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
  std::array<PlanQuantity, kPlanQuantities> order{};  // order of the sums
  int criteria = 2;                                   // sums that count: 2, 3 or 4
  int64_t most_labels = 0;
  // For a goal with these quantities: drops labels that cannot become as good as `incumbent`.
  const LagrangeBound* bound = nullptr;
  double limit = kUnbounded, incumbent = kUnbounded;
};

struct LabelList {
  std::vector<Plan> plans{};                       // by rising sums
  std::array<double, kPlanQuantities - 1> gaps{};  // from the second sum on
};

struct Step {
  int parent = 0;  // place in the list of the decision before
  int option = 0;
};
struct Label : Step {
  std::array<double, kPlanQuantities> sums{};
};

// Undominated points: no point is at most another in both coordinates.
class Stairs {
 public:
  // Whether a point is at most (x, y).
  bool covers(double x, double y) const {
    const auto after = steps_.upper_bound(x);
    return after != steps_.begin() && std::prev(after)->second <= y;
  }
  void add(double x, double y) {
    if (covers(x, y)) return;
    auto next = steps_.lower_bound(x);
    while (next != steps_.end() && next->second >= y) next = steps_.erase(next);
    steps_[x] = y;
  }

 private:
  std::map<double, double> steps_;  // y by x: falling as x rises
};

// As Stairs with one more coordinate: its ranks index a binary indexed tree, whose node i has the points of the ranks
// after i - (lowest bit of i), up to i (Fenwick 1994).
class StairsByRank {
 public:
  explicit StairsByRank(size_t ranks) : nodes_(ranks + 1) {}

  // Ranks from 1.
  bool covers(size_t rank, double x, double y) const {
    for (size_t i = rank; i > 0; i -= i & (~i + 1)) {
      if (nodes_[i].covers(x, y)) return true;
    }
    return false;
  }
  void add(size_t rank, double x, double y) {
    for (size_t i = rank; i < nodes_.size(); i += i & (~i + 1)) nodes_[i].add(x, y);
  }

 private:
  std::vector<Stairs> nodes_;
};

// `labels` are sorted by their sums. A label is compared with earlier labels, which are no worse in the first sum.
void drop_dominated(std::vector<Label>& labels, int criteria) {
  std::vector<double> fourth = {0.0};  // the values that count, sorted
  if (criteria == 4) {
    for (const Label& label : labels) fourth.push_back(label.sums[3]);
    std::ranges::sort(fourth);
  }
  StairsByRank stairs(fourth.size());
  std::erase_if(labels, [&](const Label& label) {
    const double second = label.sums[1], third = criteria >= 3 ? label.sums[2] : 0.0;
    const double last = criteria == 4 ? label.sums[3] : 0.0;
    const auto rank = static_cast<size_t>(std::ranges::upper_bound(fourth, last) - fourth.begin());
    if (stairs.covers(rank, second, third)) return true;
    stairs.add(rank, second, third);
    return false;
  });
}

// Leaves at most `most` labels, one for each cell; returns the widths of the intervals.
std::array<double, kPlanQuantities - 1> thin(std::vector<Label>& labels, int criteria, double most) {
  using Cell = std::array<int64_t, kPlanQuantities - 1>;
  const int dimensions = criteria - 1;
  std::array<double, kPlanQuantities - 1> least{}, range{}, width{};
  for (int d = 0; d < dimensions; ++d) {
    const auto [low, high] = std::ranges::minmax(labels, {}, [&](const Label& label) { return label.sums[d + 1]; });
    least[d] = low.sums[d + 1];
    range[d] = high.sums[d + 1] - least[d];
  }
  const auto first_of_cells = [&](double intervals) {
    std::set<Cell> cells;
    std::vector<Label> first;
    for (const Label& label : labels) {
      Cell cell{};
      for (int d = 0; d < dimensions; ++d) {
        width[d] = range[d] / intervals;
        // The last interval includes its upper end.
        if (width[d] > 0.0)
          cell[d] = static_cast<int64_t>(std::min((label.sums[d + 1] - least[d]) / width[d], intervals - 1));
      }
      if (cells.insert(cell).second) first.push_back(label);
    }
    return first;
  };
  // Time and energy go together, so that few cells of three dimensions have labels: as many intervals as leave few
  // enough labels.
  double intervals = std::max(1.0, std::floor(std::pow(most, 1.0 / std::min(dimensions, 2))));
  std::vector<Label> left = first_of_cells(intervals);
  while (static_cast<double>(left.size()) > most && intervals > 1.0) {
    intervals = std::max(1.0, std::floor(0.9 * intervals));
    left = first_of_cells(intervals);
  }
  labels = std::move(left);
  return width;
}

LabelList undominated_plans(const PlanProblem& problem, const LabelSearch& search) {
  LabelList list;
  const auto first = [&](const PlanOption& option) { return quantity(option.totals(), search.order[0]); };
  const std::vector<double> rest = least_of_rest(problem, first);
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
        for (int k = 0; k < kPlanQuantities; ++k) label.sums[k] += quantity(cost, search.order[k]);
        if (can_be_best(label, i + 1)) labels.push_back(label);
      }
    }
    std::ranges::stable_sort(labels, {}, &Label::sums);
    drop_dominated(labels, search.criteria);
    if (std::ssize(labels) > search.most_labels) {
      const auto width = thin(labels, search.criteria, static_cast<double>(search.most_labels) / 2);
      for (size_t d = 0; d < width.size(); ++d) list.gaps[d] += width[d];
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

// Changes a decision at a time, the best change first, while that makes the plan better.
Plan improved(const PlanProblem& problem, const PlanGoal& goal, Plan plan) {
  PlanRank best_rank = rank(goal, evaluate(problem, plan));
  for (Plan best = plan;; plan = best) {
    for (size_t i = 0; i < problem.size(); ++i) {
      Plan other = plan;
      for (other[i] = 0; other[i] < std::ssize(problem[i].options); ++other[i]) {
        const PlanRank found = rank(goal, evaluate(problem, other));
        if (found < best_rank) std::tie(best, best_rank) = std::tie(other, found);
      }
    }
    if (best == plan) return plan;
  }
}

// Some plan meets the budget, among them `nearest`. The better the incumbent, the fewer labels are left.
SearchResult knapsack(const PlanProblem& problem, const PlanGoal& goal, const Plan& nearest, int64_t most_labels) {
  const auto rank_of = [&](const Plan& plan) { return rank(goal, evaluate(problem, plan)); };
  const LagrangeBound bound(problem, goal);
  const Plan best = improved(problem, goal, bound.plan().empty() ? nearest : bound.plan());
  LabelList list = undominated_plans(problem, {.order = goal.quantities(),
                                               .most_labels = most_labels,
                                               .bound = &bound,
                                               .limit = goal.tolerated(),
                                               .incumbent = quantity(evaluate(problem, best), goal.quantities()[1])});
  // Thinned lists may have lost every plan as good as `best`. The list's plans come first among equals.
  list.plans.push_back(best);
  SearchResult found{.plan = std::ranges::min(list.plans, {}, rank_of)};
  const double above_bound = rank_of(found.plan)[1] - bound.least(0.0, 0.0, 0);
  found.gap = std::min(list.gaps[0], above_bound);
  return found;
}

}  // namespace

SearchResult solve(const PlanProblem& problem, const PlanGoal& goal, int64_t most_labels) {
  check_problem(problem);
  check_goal(goal);
  std::vector<size_t> order(problem.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return problem[i].name; });
  PlanProblem sorted;
  for (const size_t i : order) sorted.push_back(problem[i]);

  SearchResult found{.plan = nearest_plan(sorted, goal)};
  found.meets_budget = goal.is_met(evaluate(sorted, found.plan));
  if (found.meets_budget) found = knapsack(sorted, goal, found.plan, most_labels);
  found.totals = evaluate(sorted, found.plan);
  const Plan in_order = found.plan;
  for (size_t i = 0; i < order.size(); ++i) found.plan[order[i]] = in_order[i];
  return found;
}

ParetoFront pareto_front(const PlanProblem& problem, int64_t most_labels) {
  check_problem(problem);
  using enum PlanQuantity;
  const bool has_energy = std::ranges::any_of(problem, [](const PlanDecision& decision) {
    return std::ranges::any_of(decision.options, [](const PlanOption& option) { return option.joules > 0.0; });
  });
  LabelList list = undominated_plans(
      problem,
      {.order = {kSeconds, kDamage, kBytes, kJoules}, .criteria = has_energy ? 4 : 3, .most_labels = most_labels});
  return {.plans = std::move(list.plans),
          .damage_gap = list.gaps[0],
          .bytes_gap = list.gaps[1],
          .joules_gap = list.gaps[2]};
}

}  // namespace mantissa
