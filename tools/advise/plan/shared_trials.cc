#include "tools/advise/plan/shared_trials.h"

#include <algorithm>
#include <limits>

#include "comm/local/rank_threads.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "tools/train/train_step.h"

namespace mantissa {
namespace {

// Of the batch of a step, in nats a token. Collective.
double loss_of(StepWork& work, int64_t step, Communicator& communicator) {
  work.load(step);
  const std::vector<double> sums = all_gather_records(communicator, work.loss_again());
  double sum = 0.0;
  for (const double one : sums) sum += one;
  return sum / static_cast<double>(work.count_global_tokens());
}

// The losses behind each window. Collective.
std::vector<double> train_windows(const Config& config, const HeldState& point, const SharedTrials& trials,
                                  Communicator& communicator) {
  Session session(config, communicator);
  StepWork work(session);
  std::vector<double> losses;
  for (int64_t window = 0; window < trials.windows; ++window) {
    point.hand_over(session);
    session.next_step += window * trials.steps;
    TrainStep step(session);
    for (int64_t i = 0; i < trials.steps; ++i) step.run();
    step.finish();
    double sum = 0.0;
    for (int64_t i = 0; i < trials.evaluations; ++i) sum += loss_of(work, session.next_step + i, communicator);
    losses.push_back(sum / static_cast<double>(trials.evaluations));
  }
  return losses;
}

// The same on all its ranks. Nothing where the training ended in a fault.
std::vector<double> losses_of(const Config& config, const HeldState& point, const SharedTrials& trials,
                              Communicator& communicator) {
  std::vector<double> losses;
  try {
    if (trials.ranks == 1) return train_windows(config, point, trials, communicator);
    const HeldState nothing = point.without_pieces();
    const int threads_of_rank = std::max(1, threads() / trials.ranks);
    run_ranks(trials.ranks, [&](Communicator& rank) {
      set_threads(threads_of_rank);
      const bool is_first = rank.rank() == 0;
      const std::vector<double> found = train_windows(config, is_first ? point : nothing, trials, rank);
      if (is_first) losses = found;
    });
  } catch (const FaultError& error) {
    log_info("plan: a trial failed: {}", error.what());
    losses.clear();
  }
  return losses;
}

Estimate difference(const std::vector<double>& found, const std::vector<double>& exact) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  if (found.size() != exact.size() || found.empty()) return {kNaN, kNaN, kNaN};
  std::vector<double> changes;
  for (size_t i = 0; i < found.size(); ++i) changes.push_back(found[i] - exact[i]);
  return estimate(changes);
}

}  // namespace

int ranks_of_trials(const std::vector<PlannedPlace>& shared, int ranks) {
  const bool has_wire = std::any_of(shared.begin(), shared.end(), [](const PlannedPlace& place) {
    return !place.is_layer() && place.shared == SharedFormat::kWire;
  });
  if (!has_wire) return 1;
  int factor = 2;  // the smallest that divides them: batches do then as well
  while (ranks % factor != 0) ++factor;
  return factor;
}

std::vector<SharedDamage> try_shared(const Config& config, DType low, const std::vector<PlannedPlace>& shared,
                                     const HeldState& point, const SharedTrials& trials, Communicator& communicator) {
  std::vector<SharedDamage> found;
  const Plan exact(shared.size(), 0);
  const auto losses = [&](const Plan& plan) {
    return losses_of(with_plan(config, low, shared, plan), point, trials, communicator);
  };
  const std::vector<double> exact_losses = losses(exact);
  for (size_t place = 0; place < shared.size(); ++place) {
    for (size_t option = 1; option < shared[place].options.size(); ++option) {
      Plan plan = exact;
      plan[place] = static_cast<int>(option);
      found.push_back({.place = shared[place].name(),
                       .option = shared[place].options[option].name,
                       .loss = difference(losses(plan), exact_losses)});
      log_info("plan: {} in {}: loss {:+.2g} nats after {} steps", found.back().place, found.back().option,
               found.back().loss.mean, trials.steps);
    }
  }
  return found;
}

}  // namespace mantissa
