#include "tools/lab/advise/plan/shared_trials.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/local/rank_threads.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "tools/lab/analyze/sensitivity/passes.h"
#include "tools/train/train_step.h"

namespace mantissa {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// What shared formats are tried in.
Config with_trial_settings(Config config, DType low, const SharedTrials& trials) {
  ScheduleOptions& schedule = config.optimizer.schedule;
  schedule = {.kind = ScheduleKind::kConstant, .peak = schedule.peak, .total_steps = schedule.total_steps};
  config.optimizer.adamw.weight_rounding = WeightRounding::kNearest;
  if (low == DType::kF16) {  // a scale that was still being looked for would skip steps
    config.scaler.mode = ScalerChoice::kStatic;
    config.scaler.scaler.init_scale = static_cast<float>(trials.fp16_scale);
  }
  return config;
}

// Of the batch of a step, in nats a token. Collective.
double loss_of(StepWork& work, int64_t step, Communicator& communicator) {
  work.load(step);
  return sum_over_ranks({work.loss_again()}, communicator)[0] / static_cast<double>(work.count_global_tokens());
}

// Whether all of these steps were applied. Collective.
bool train(Session& session, int64_t steps) {
  TrainStep step(session);
  bool applied = true;
  const auto look = [&](const std::vector<StepReport>& reports) {
    for (const StepReport& report : reports) applied = applied && report.applied;
  };
  for (int64_t i = 0; i < steps; ++i) look(step.run());
  look(step.finish());
  return applied;
}

// The losses behind each window; NaN where one is not known. Collective.
std::vector<double> train_windows(const Config& config, const HeldState& point, const SharedTrials& trials,
                                  Communicator& communicator) {
  Session session(config, communicator);
  StepWork work(session);
  std::vector<double> losses;
  for (int64_t window = 0; window < trials.windows; ++window) {
    point.hand_over(session);
    session.next_step += window * trials.steps;
    const int64_t behind = session.next_step + trials.steps;  // whatever became of the steps
    double sum = train(session, trials.steps) ? 0.0 : kNaN;
    for (int64_t i = 0; i < trials.evaluations; ++i) sum += loss_of(work, behind + i, communicator);
    losses.push_back(sum / static_cast<double>(trials.evaluations));
  }
  return losses;
}

// The same on all its ranks.
std::vector<double> losses_of(const Config& config, const HeldState& point, const SharedTrials& trials,
                              Communicator& communicator) {
  if (trials.ranks == 1) return train_windows(config, point, trials, communicator);
  std::vector<double> losses;
  const HeldState nothing = point.without_pieces();
  const int threads_of_rank = std::max(1, threads() / trials.ranks);
  run_ranks(trials.ranks, [&](Communicator& rank) {
    set_threads(threads_of_rank);
    const bool is_first = rank.rank() == 0;
    const std::vector<double> found = train_windows(config, is_first ? point : nothing, trials, rank);
    if (is_first) losses = found;
  });
  return losses;
}

Estimate difference(const std::vector<double>& found, const std::vector<double>& exact) {
  std::vector<double> changes;
  for (size_t i = 0; i < found.size(); ++i) changes.push_back(found[i] - exact[i]);
  return estimate(changes);
}

bool is_finite(const std::vector<double>& losses) {
  return std::all_of(losses.begin(), losses.end(), [](double loss) { return std::isfinite(loss); });
}

}  // namespace

int ranks_of_trials(const std::vector<PlannedPlace>& places, int ranks) {
  const bool has_wire = std::any_of(places.begin(), places.end(),
                                    [](const PlannedPlace& place) { return place.is(SharedFormat::kWire); });
  if (!has_wire) return 1;
  int factor = 2;  // the smallest that divides them: batches do then as well
  while (ranks % factor != 0) ++factor;
  return factor;
}

std::optional<std::vector<SharedDamage>> try_shared(const Config& config, DType low,
                                                    const std::vector<PlannedPlace>& places, const HeldState& point,
                                                    const SharedTrials& trials, Communicator& communicator) {
  const Config trained = with_trial_settings(config, low, trials);
  const auto losses = [&](const Plan& plan) {
    return losses_of(with_plan(trained, low, places, plan), point, trials, communicator);
  };
  Plan exact = uniform_plan(places, low, std::string(name(low)));
  for (size_t place = 0; place < places.size(); ++place) {
    if (!places[place].is_layer()) exact[place] = 0;
  }
  const std::vector<double> exact_losses = losses(exact);
  if (!is_finite(exact_losses)) return std::nullopt;
  std::vector<SharedDamage> found;
  for (size_t place = 0; place < places.size(); ++place) {
    if (places[place].is_layer()) continue;
    for (size_t option = 1; option < places[place].options.size(); ++option) {
      Plan plan = exact;
      plan[place] = static_cast<int>(option);
      found.push_back({.place = places[place].name(),
                       .option = places[place].options[option].name,
                       .loss = difference(losses(plan), exact_losses)});
      log_info("plan: {} in {}: loss {:+.2g} +- {:.1g} nats after {} steps", found.back().place, found.back().option,
               found.back().loss.mean, found.back().loss.error, trials.steps);
    }
  }
  return found;
}

}  // namespace mantissa
