#include "tools/lab/advise/plan/whole_search.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "core/base/check.h"

namespace mantissa {
namespace {

using Rank = std::array<double, 5>;  // the smaller, the better, from the first number on

class Search {
 public:
  explicit Search(const WholeSearch& search) : search_(search) {
    for (const Plan& start : search.starts) {
      if (!prices_.contains(start)) prices_.emplace(start, search.price(start));
    }
  }

  FoundWhole run() {
    FoundWhole found;
    found.is_optimum = all_plans() <= static_cast<double>(search_.most_plans);
    if (found.is_optimum) price_all();
    const bool has_tolerance = search_.goal.budget != Budget::kLoss;
    improve(has_tolerance ? search_.most_plans / 2 : search_.most_plans);
    if (has_tolerance) {
      harmless_ = best()->second.damage + search_.tolerance;
      improve(search_.most_plans / 2);
    }
    found.plan = best()->first;
    found.totals = best()->second;
    found.plans_priced = static_cast<int64_t>(prices_.size());
    return found;
  }

 private:
  using Prices = std::map<Plan, PlanTotals>;

  double all_plans() const {
    double plans = 1.0;
    for (const int options : search_.options) plans *= options;
    return plans;
  }

  void price_all() {
    Plan plan(search_.options.size(), 0);
    for (size_t place = 0; place < plan.size();) {
      prices_.try_emplace(plan, search_.price(plan));
      for (place = 0; place < plan.size() && ++plan[place] == search_.options[place]; ++place) plan[place] = 0;
    }
  }

  Rank rank_of(const PlanTotals& totals) const {
    const double missing = std::max(0.0, totals.bytes - search_.most_bytes);
    const auto [excess, least, limited, third] = rank(search_.goal, totals);
    if (!harmless_) return {missing, excess, least, limited, third};
    return {missing, excess, std::max(0.0, totals.damage - *harmless_), totals.seconds, totals.damage};
  }

  Prices::const_iterator best() const {
    return std::min_element(prices_.begin(), prices_.end(), [&](const auto& one, const auto& other) {
      return rank_of(one.second) < rank_of(other.second);
    });
  }

  bool may_price() const { return static_cast<int64_t>(prices_.size()) < most_prices_; }

  // Whether this plan is better than `than`, which it then replaces.
  bool replaces(const Plan& plan, Plan& than) {
    auto place = prices_.find(plan);
    if (place == prices_.end()) {
      if (!may_price()) return false;
      place = prices_.try_emplace(plan, search_.price(plan)).first;
    }
    if (!(rank_of(place->second) < rank_of(prices_.at(than)))) return false;
    than = plan;
    return true;
  }

  // Prices so many plans more, at most.
  void improve(int64_t most) {
    most_prices_ = static_cast<int64_t>(prices_.size()) + most;
    Plan plan = best()->first;
    while (may_price() && (improve_one(plan) || improve_two(plan))) {
    }
  }

  bool improve_one(Plan& plan) {
    bool improved = false;
    for (size_t place = 0; place < plan.size(); ++place) {
      Plan other = plan;
      for (other[place] = 0; other[place] < search_.options[place]; ++other[place]) {
        improved |= replaces(other, plan);
      }
    }
    return improved;
  }

  // What one decision saves another may need.
  bool improve_two(Plan& plan) {
    for (size_t first = 0; first < plan.size(); ++first) {
      for (size_t second = first + 1; second < plan.size(); ++second) {
        Plan other = plan;
        for (other[first] = 0; other[first] < search_.options[first]; ++other[first]) {
          for (other[second] = 0; other[second] < search_.options[second]; ++other[second]) {
            if (replaces(other, plan)) return true;
          }
        }
      }
    }
    return false;
  }

  const WholeSearch& search_;
  Prices prices_;
  int64_t most_prices_ = 0;
  std::optional<double> harmless_;  // damage that is as good as the least
};

}  // namespace

FoundWhole search_wholes(const WholeSearch& search) {
  MANTISSA_CHECK(!search.starts.empty(), "[search_wholes] expected a plan to start from");
  return Search(search).run();
}

}  // namespace mantissa
