// Solvers that draw random plans.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "tools/lab/advise/search/solver.h"

namespace mantissa {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Table = std::vector<std::vector<double>>;  // by decision and option
using Tried = std::pair<double, Plan>;

// The options' frequencies, plus another plan in which all are equally frequent.
Table densities_of(const PlanProblem& problem, std::span<const Tried> tried) {
  Table densities;
  for (size_t d = 0; d < problem.size(); ++d) {
    const size_t options = problem[d].options.size();
    std::vector<double>& counts = densities.emplace_back(options, 1.0 / static_cast<double>(options));
    for (const auto& [value, plan] : tried) counts[plan[d]] += 1.0;
    for (double& count : counts) count /= static_cast<double>(tried.size()) + 1.0;
  }
  return densities;
}

constexpr int kEpisodes = 64;  // of a batch
constexpr double kRate = 0.5;

// A drawn plan, and the probabilities of the options at each draw: 0 for options that were not left.
struct Episode {
  Plan plan{};
  Table probabilities{};
  PlanTotals totals{};
  double cost = 0.0;  // the negated return
};

class PlanPolicy {
 public:
  PlanPolicy(const PlanProblem& problem, const PlanGoal& goal) : problem_(problem), goal_(goal), limited_(goal.budget) {
    least_of_rest_ = least_of_rest(problem, [&](const PlanOption& one) { return quantity(one.totals(), limited_); });
    for (const PlanDecision& decision : problem) logits_.emplace_back(decision.options.size(), 0.0);
  }

  Episode draw(Draws& draws) const {
    Episode episode;
    double spent = 0.0;
    for (size_t i = 0; i < problem_.size(); ++i) {
      episode.plan.push_back(draws.option(episode.probabilities.emplace_back(probabilities(i, spent))));
      spent += quantity(problem_[i].options[episode.plan.back()].totals(), limited_);
    }
    episode.totals = evaluate(problem_, episode.plan);
    episode.cost = quantity(episode.totals, goal_.quantities()[1]);
    return episode;
  }

  // Whether there was something to learn.
  bool learn(const std::vector<Episode>& episodes) {
    const auto count = static_cast<double>(episodes.size());
    double mean = 0.0, squares = 0.0;
    for (const Episode& episode : episodes) mean += episode.cost / count;
    for (const Episode& episode : episodes) squares += (episode.cost - mean) * (episode.cost - mean);
    const double deviation = std::sqrt(squares / count);
    if (!(deviation > 1e-12 * mean)) return false;
    for (const Episode& episode : episodes) {
      // From the mean of the others: n / (n - 1) times the distance from the mean of all.
      const double advantage = (mean - episode.cost) / deviation * count / (count - 1.0);
      for (size_t i = 0; i < logits_.size(); ++i) {
        for (size_t option = 0; option < logits_[i].size(); ++option) {
          const double drawn = episode.plan[i] == static_cast<int>(option) ? 1.0 : 0.0;
          logits_[i][option] += kRate * advantage / count * (drawn - episode.probabilities[i][option]);
        }
      }
    }
    return true;
  }

 private:
  // Over the options after which the rest can meet the budget, if this much is spent. If rounding leaves none, the
  // option with the least need.
  std::vector<double> probabilities(size_t decision, double spent) const {
    const std::vector<PlanOption>& options = problem_[decision].options;
    std::vector<double> p(options.size(), 0.0);
    double largest = -kInfinity, sum = 0.0;
    const auto is_left = [&](size_t option) {
      return spent + quantity(options[option].totals(), limited_) + least_of_rest_[decision + 1] <= goal_.tolerated();
    };
    for (size_t option = 0; option < p.size(); ++option) {
      if (is_left(option)) largest = std::max(largest, logits_[decision][option]);
    }
    for (size_t option = 0; option < p.size(); ++option) {
      if (is_left(option)) sum += p[option] = std::exp(logits_[decision][option] - largest);
    }
    if (sum == 0.0) p[static_cast<size_t>(least_option(problem_[decision], limited_))] = sum = 1.0;
    for (double& one : p) one /= sum;
    return p;
  }

  const PlanProblem& problem_;
  const PlanGoal goal_;
  const PlanQuantity limited_;
  std::vector<double> least_of_rest_;  // of the limited quantity, from a decision on
  Table logits_;
};

}  // namespace

uint32_t Draws::word() {
  if (drawn_ % 4 == 0)
    words_ = philox(seed_, {static_cast<uint32_t>(drawn_ / 4), static_cast<uint32_t>(drawn_ >> 34), 0, 0});
  return words_[drawn_++ % 4];
}

int Draws::option(const std::vector<double>& probabilities) {
  double left = uniform();
  size_t option = 0;
  while (option + 1 < probabilities.size() && (left -= probabilities[option]) >= 0.0) ++option;
  while (probabilities[option] == 0.0) --option;  // rounded sums may pass the last possible option
  return static_cast<int>(option);
}

Plan random_plan(const PlanProblem& problem, Draws& draws) {
  Plan plan;
  for (const PlanDecision& decision : problem) plan.push_back(draws.below(decision.options.size()));
  return plan;
}

void repair_budget(const PlanProblem& problem, const PlanGoal& goal, Plan& plan, Draws& draws) {
  std::vector<size_t> order(problem.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (size_t left = order.size(); left > 0 && !goal.is_met(evaluate(problem, plan)); --left) {
    std::swap(order[draws.below(left)], order[left - 1]);
    const size_t decision = order[left - 1];
    plan[decision] = least_option(problem[decision], goal.budget);
  }
}

// Evolution, (mu + lambda): the 64 best of parents and children are the next parents (Schwefel, "Numerical Optimization
// of Computer Models", 1981). A child takes each option from one of two parents; then each decision takes a random
// option with probability 1 / decisions. Plans that exceed the budget are repaired. The first parents are the uniform
// plans and random ones.
Plan evolution(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  constexpr size_t kParents = 64, kChildren = 64;
  Draws draws(settings.seed);
  std::set<std::pair<PlanRank, Plan>> plans;  // no plan is in it twice
  const auto insert = [&](Plan plan) {
    repair_budget(problem, goal, plan, draws);
    const PlanRank plan_rank = rank(goal, evaluate(problem, plan));
    plans.insert({plan_rank, std::move(plan)});
  };
  const auto select = [&] {
    while (plans.size() > kParents) plans.erase(std::prev(plans.end()));
  };
  const auto parent = [&]() -> const Plan& { return std::next(plans.begin(), draws.below(plans.size()))->second; };

  for (const Plan& plan : uniform_plans(problem)) insert(plan);
  for (size_t i = 0; i < kParents; ++i) insert(random_plan(problem, draws));
  select();
  for (int generation = 0; generation < settings.generations; ++generation) {
    std::vector<Plan> children;
    for (size_t i = 0; i < kChildren; ++i) {
      const Plan &a = parent(), &b = parent();
      Plan& child = children.emplace_back();
      for (size_t d = 0; d < problem.size(); ++d) {
        child.push_back((draws.word() & 1) != 0 ? a[d] : b[d]);
        if (draws.below(problem.size()) == 0) child.back() = draws.below(problem[d].options.size());
      }
    }
    for (Plan& child : children) insert(std::move(child));
    select();
  }
  return plans.begin()->second;
}

// Bayesian search: minimizes the predicted quantity by the tree-structured Parzen estimator (Bergstra, Bardenet,
// Bengio, Kegl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011). For each decision, the better quarter of
// the tried plans gives a density l of its options, and the rest a density g. Candidates are drawn from l. The next to
// try has the largest l / g, and so the largest expected improvement. Plans beyond the budget are repaired; if they
// still exceed it, they count as worse than all others. No plan is tried twice. The first are the uniform plans and
// random ones.
Plan bayesian(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  constexpr double kBetterShare = 0.25;
  constexpr int kRandomPlans = 40, kCandidates = 32;  // candidates are drawn for each evaluation
  constexpr int kMostIdle = 100;                      // draws without a new plan: the space is nearly exhausted
  Draws draws(settings.seed);
  std::vector<Tried> tried;  // by rising value, of equals the first to be tried
  std::set<Plan> known;
  // The best untried candidate, or the best tried one if all were tried.
  const auto next_plan = [&] {
    const auto better = static_cast<size_t>(std::ceil(kBetterShare * static_cast<double>(tried.size())));
    const Table l = densities_of(problem, std::span(tried).first(better));
    const Table g = densities_of(problem, std::span(tried).subspan(better));
    std::pair<bool, double> best_score{false, -kInfinity};
    Plan best(problem.size(), 0);
    for (int i = 0; i < kCandidates; ++i) {
      Plan plan;
      for (const std::vector<double>& density : l) plan.push_back(draws.option(density));
      repair_budget(problem, goal, plan, draws);
      double log_ratio = 0;
      for (size_t d = 0; d < plan.size(); ++d) log_ratio += std::log(l[d][plan[d]] / g[d][plan[d]]);
      const std::pair score{!known.contains(plan), log_ratio};
      if (score > best_score) std::tie(best_score, best) = std::pair(score, std::move(plan));
    }
    return best;
  };
  const std::vector<Plan> uniform = uniform_plans(problem);
  for (int drawn = 0, idle = 0; std::ssize(tried) < settings.evaluations && idle < kMostIdle; ++drawn) {
    const bool is_random = drawn < kRandomPlans;
    Plan plan = !is_random ? next_plan() : drawn < std::ssize(uniform) ? uniform[drawn] : random_plan(problem, draws);
    if (is_random) repair_budget(problem, goal, plan, draws);
    if (!known.insert(plan).second) {
      idle += !is_random;
      continue;
    }
    const PlanRank found = rank(goal, evaluate(problem, plan));
    const double value = found[0] == 0 ? found[1] : kInfinity;
    tried.emplace(std::ranges::upper_bound(tried, value, {}, &Tried::first), value, std::move(plan));
    idle = 0;
  }
  return tried.front().second;
}

// Reinforcement learning by the policy gradient (REINFORCE: Williams, "Simple Statistical Gradient-Following Algorithms
// for Connectionist Reinforcement Learning", Machine Learning 8, 1992).
//
// The policy is a softmax over the options of each decision, p = softmax(a). An episode draws an option for each
// decision in turn, among options after which the rest can still meet the budget, so every episode meets it. Its return
// is the minimized quantity, negated. With the episodes of a batch, each with return R and drawn options o,
//   a += rate * mean over episodes of (R - baseline) / deviation * d(log p(o)) / da,   d(log p(o)) / da = [o] - p
// p is the policy over the options left at this point. The baseline is the mean return of the batch's other episodes:
// this keeps the gradient unbiased. The deviation is taken over the batch's returns, so that seconds, bytes and nats
// learn at the same rate. Ends early when all returns of a batch are alike. Takes the best plan of all episodes.
Plan reinforcement(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  Draws draws(settings.seed);
  PlanPolicy policy(problem, goal);
  Plan best(problem.size(), 0);
  PlanRank best_rank = rank(goal, evaluate(problem, best));
  for (int batch = 0; batch < settings.batches; ++batch) {
    std::vector<Episode> episodes;
    for (int i = 0; i < kEpisodes; ++i) {
      const Episode& episode = episodes.emplace_back(policy.draw(draws));
      const PlanRank found = rank(goal, episode.totals);
      if (found < best_rank) std::tie(best, best_rank) = std::tuple(episode.plan, found);
    }
    if (!policy.learn(episodes)) break;
  }
  return best;
}

}  // namespace mantissa
