#include "tools/lab/advise/plan/plan_advice.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "core/base/check.h"

namespace mantissa {
namespace {

class Search {
 public:
  explicit Search(const WholeSearch& search) : search_(search) {
    for (const Plan& start : search.starts) price(start);
  }

  FoundWhole run() {
    double plans = 1.0;
    for (const int options : search_.options) plans *= options;
    const bool is_optimum = plans <= static_cast<double>(search_.most_plans);
    if (is_optimum) price_all();
    const bool has_tolerance = search_.goal.budget != PlanQuantity::kDamage;
    improve(has_tolerance ? search_.most_plans / 2 : search_.most_plans);
    if (has_tolerance) {
      harmless_ = best().second.damage + search_.tolerance;
      improve(search_.most_plans / 2);
    }
    const auto& [plan, totals] = best();
    return {plan, totals, static_cast<int64_t>(prices_.size()), is_optimum};
  }

 private:
  // The smaller, the better, from the first number on.
  using Rank = std::array<double, std::tuple_size_v<PlanRank> + 1>;

  const PlanTotals& price(const Plan& plan) {
    const auto [entry, is_new] = prices_.try_emplace(plan);
    if (is_new) entry->second = search_.price(plan);
    return entry->second;
  }

  void price_all() {
    Plan plan(search_.options.size(), 0);
    for (size_t place = 0; place < plan.size();) {
      price(plan);
      for (place = 0; place < plan.size() && ++plan[place] == search_.options[place]; ++place) plan[place] = 0;
    }
  }

  Rank rank_of(const PlanTotals& totals) const {
    const double missing = std::max(0.0, totals.bytes - search_.most_bytes);
    const auto [excess, least, limited, third, fourth] = rank(search_.goal, totals);
    if (!harmless_) return {missing, excess, least, limited, third, fourth};
    return {missing, excess, std::max(0.0, totals.damage - *harmless_), totals.seconds, totals.damage};
  }

  const std::pair<const Plan, PlanTotals>& best() const {
    return *std::ranges::min_element(prices_, {}, [&](const auto& priced) { return rank_of(priced.second); });
  }

  bool may_price() const { return std::ssize(prices_) < most_prices_; }

  // Whether this plan is better than `than`, which it then replaces.
  bool replaces(const Plan& plan, Plan& than) {
    if (!prices_.contains(plan) && !may_price()) return false;
    if (!(rank_of(price(plan)) < rank_of(prices_.at(than)))) return false;
    than = plan;
    return true;
  }

  // Prices at most this many more plans.
  void improve(int64_t most) {
    most_prices_ = std::ssize(prices_) + most;
    Plan plan = best().first;
    while (may_price() && (improve_one(plan) || improve_two(plan))) continue;
  }

  bool improve_one(Plan& plan) {
    bool improved = false;
    for (size_t place = 0; place < plan.size(); ++place) {
      Plan other = plan;
      for (other[place] = 0; other[place] < search_.options[place]; ++other[place]) improved |= replaces(other, plan);
    }
    return improved;
  }

  // One decision may need the savings of another.
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
  std::map<Plan, PlanTotals> prices_;
  int64_t most_prices_ = 0;
  std::optional<double> harmless_;  // damage that is as good as the least
};

}  // namespace

FoundWhole search_wholes(const WholeSearch& search) {
  MANTISSA_CHECK(!search.starts.empty(), "[search_wholes] expected a plan to start from");
  return Search(search).run();
}

std::optional<Plan> promoted(const PlanProblem& problem, const Plan& plan) {
  const double target = evaluate(problem, plan).damage / 2.0;
  Plan now = plan;
  while (evaluate(problem, now).damage > target) {
    double best_gain = 0.0;  // loss won for each second
    size_t best_decision = 0;
    int best_option = 0;
    for (size_t i = 0; i < problem.size(); ++i) {
      const std::vector<PlanOption>& options = problem[i].options;
      for (int option = 0; option < std::ssize(options); ++option) {
        const double won = options[now[i]].damage - options[option].damage;
        const double cost = options[option].seconds - options[now[i]].seconds;
        const double gain = cost > 0.0 ? won / cost : std::numeric_limits<double>::infinity();
        if (won > 0.0 && gain > best_gain)
          std::tie(best_gain, best_decision, best_option) = std::tuple(gain, i, option);
      }
    }
    if (best_gain == 0.0) break;
    now[best_decision] = best_option;
  }
  return now == plan ? std::nullopt : std::optional(now);
}

}  // namespace mantissa
