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

#include <algorithm>
#include <cmath>

#include "tools/lab/advise/search/random_search.h"

namespace mantissa {
namespace {

constexpr int kEpisodes = 64;  // of a batch
constexpr double kRate = 0.5;

using Policy = std::vector<std::vector<double>>;  // by decision and option

// A drawn plan, and the probabilities of the options at each draw: 0 for options that were not left.
struct Episode {
  Plan plan{};
  Policy probabilities{};
  PlanTotals totals{};
  double cost = 0.0;  // the negated return
};

class PlanPolicy {
 public:
  PlanPolicy(const PlanProblem& problem, const PlanGoal& goal)
      : problem_(problem), goal_(goal), limited_(goal.quantities()[0]), least_of_rest_(problem.size() + 1, 0.0) {
    for (const PlanDecision& decision : problem) logits_.emplace_back(decision.options.size(), 0.0);
    for (size_t i = problem.size(); i-- > 0;) {
      const PlanOption& least = problem[i].options[static_cast<size_t>(least_option(problem[i], limited_))];
      least_of_rest_[i] = least_of_rest_[i + 1] + quantity(least.totals(), limited_);
    }
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
    double largest = -std::numeric_limits<double>::infinity(), sum = 0.0;
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
  Policy logits_;
};

}  // namespace

FoundPlan reinforcement(const PlanProblem& problem, const PlanGoal& goal, const SearchSettings& settings) {
  Draws draws(settings.seed);
  PlanPolicy policy(problem, goal);
  Plan best = same_option(problem, 0);
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
  return {.plan = best};
}

}  // namespace mantissa
