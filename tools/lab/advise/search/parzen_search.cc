#include "tools/lab/advise/search/parzen_search.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace mantissa {
namespace {

using Tried = std::pair<double, UnitPlan>;
using Densities = std::vector<std::vector<double>>;  // by unit and option

Densities densities_of(const PlanUnits& units, const std::vector<Tried>& tried, size_t begin, size_t end) {
  Densities densities;
  for (int u = 0; u < units.size(); ++u) {
    std::vector<double> counts(units.options(u), 1.0 / units.options(u));
    for (size_t i = begin; i < end; ++i) counts[tried[i].second[u]] += 1.0;
    for (double& count : counts) count /= static_cast<double>(end - begin) + 1.0;
    densities.push_back(std::move(counts));
  }
  return densities;
}

int draw(const std::vector<double>& density, Draws& draws) {
  double left = draws.uniform();
  for (size_t option = 0; option + 1 < density.size(); ++option) {
    left -= density[option];
    if (left < 0) return static_cast<int>(option);
  }
  return static_cast<int>(density.size()) - 1;
}

class ParzenSearch {
 public:
  ParzenSearch(const PlanUnits& units, const std::function<double(const UnitPlan&)>& objective,
               const ParzenSettings& settings)
      : units_(units), objective_(objective), settings_(settings), draws_(settings.seed) {}

  ParzenResult run() {
    for (int i = 0; i < settings_.random_plans && !is_over(); ++i) evaluate(first_plan(i));
    // Where nothing new is drawn for long the space is as good as exhausted.
    for (int idle = 0; idle < 100 && !is_over(); ++idle) {
      if (evaluate(next_plan())) idle = -1;
    }
    return std::move(result_);
  }

 private:
  bool is_over() const { return result_.evaluations >= settings_.evaluations; }

  UnitPlan first_plan(int i) {
    UnitPlan plan;
    bool is_uniform = false;
    for (int u = 0; u < units_.size(); ++u) is_uniform = is_uniform || i < units_.options(u);
    for (int u = 0; u < units_.size(); ++u) {
      plan.push_back(is_uniform ? std::min(i, units_.options(u) - 1) : draws_.below(units_.options(u)));
    }
    settings_.repair(plan, draws_);
    return plan;
  }

  // The best candidate that has not been tried; one that has where all have.
  UnitPlan next_plan() {
    std::ranges::stable_sort(tried_, {}, [](const Tried& tried) { return tried.first; });
    const auto better = static_cast<size_t>(std::ceil(settings_.better_share * static_cast<double>(tried_.size())));
    const Densities l = densities_of(units_, tried_, 0, better);
    const Densities g = densities_of(units_, tried_, better, tried_.size());
    std::pair<bool, double> best_score{false, -std::numeric_limits<double>::infinity()};
    UnitPlan best(units_.size(), 0);
    for (int i = 0; i < settings_.candidates; ++i) {
      UnitPlan plan;
      for (int u = 0; u < units_.size(); ++u) plan.push_back(draw(l[u], draws_));
      settings_.repair(plan, draws_);
      double log_ratio = 0;
      for (int u = 0; u < units_.size(); ++u) log_ratio += std::log(l[u][plan[u]] / g[u][plan[u]]);
      const std::pair score{!known_.contains(plan), log_ratio};
      if (score > best_score) std::tie(best_score, best) = std::pair(score, std::move(plan));
    }
    return best;
  }

  bool evaluate(const UnitPlan& plan) {
    if (!known_.insert(plan).second) return false;
    const double value = objective_(plan);
    const double finite_or_worst = std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
    ++result_.evaluations;
    tried_.push_back({finite_or_worst, plan});
    if (result_.plan.empty() || finite_or_worst < result_.value) {
      result_.plan = plan;
      result_.value = finite_or_worst;
    }
    return true;
  }

  const PlanUnits& units_;
  const std::function<double(const UnitPlan&)>& objective_;
  const ParzenSettings& settings_;
  Draws draws_;
  std::vector<Tried> tried_;
  std::set<UnitPlan> known_;
  ParzenResult result_;
};

}  // namespace

ParzenResult parzen_search(const PlanUnits& units, const std::function<double(const UnitPlan&)>& objective,
                           const ParzenSettings& settings) {
  return ParzenSearch(units, objective, settings).run();
}

}  // namespace mantissa
