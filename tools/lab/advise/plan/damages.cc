#include "tools/lab/advise/plan/plan_advice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "amp/autocast_policy.h"
#include "comm/local/local_communicator.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "core/base/progress_bar.h"
#include "core/base/thread_team.h"
#include "tools/lab/analyze/sensitivity/passes.h"
#include "tools/train/checkpoint.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

Config with_trial_settings(Config config, DType low, const SharedTrials& trials) {
  ScheduleOptions& schedule = config.optimizer.schedule;
  schedule = {.kind = ScheduleKind::kConstant, .peak = schedule.peak, .total_steps = schedule.total_steps};
  config.optimizer.adamw.weight_rounding = WeightRounding::kNearest;
  if (low == DType::kF16) {  // a dynamic scale would skip steps until it has settled
    config.scaler.mode = ScalerChoice::kStatic;
    config.scaler.scaler.init_scale = static_cast<float>(trials.fp16_scale);
  }
  return config;
}

// The loss after each window; NaN if it is not known. Collective.
std::vector<double> train_windows(const Config& config, const HeldState& point, const SharedTrials& trials,
                                  Communicator& communicator) {
  Session session(config, communicator);
  StepWork work(session);
  std::vector<double> losses;
  for (int64_t window = 0; window < trials.windows; ++window) {
    point.hand_over(session);
    session.next_step += window * trials.steps;
    const int64_t after = session.next_step + trials.steps;
    double sum = train_steps(session, trials.steps) ? 0.0 : std::numeric_limits<double>::quiet_NaN(), evaluated = 0.0;
    for (int64_t i = 0; i < trials.evaluations; ++i) {
      work.load(after + i);
      const auto targets = static_cast<double>(work.count_global_targets());
      if (targets == 0.0) continue;
      sum += sum_over_ranks({work.loss_again().value()}, communicator)[0] / targets;
      ++evaluated;
    }
    losses.push_back(sum / evaluated);
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

std::optional<KnownDamages::Damage> damage_of(const Estimate& loss) {
  if (!std::isfinite(loss.error)) return std::nullopt;
  return KnownDamages::Damage{.sum = std::max(0.0, loss.mean) + loss.error, .error = loss.error};
}

}  // namespace

bool train_steps(Session& session, int64_t steps) {
  TrainStep step(session);
  bool applied = true;
  const auto look = [&](const std::vector<StepReport>& reports) {
    for (const StepReport& report : reports) applied &= report.applied || report.lacks_targets();
  };
  for (int64_t i = 0; i < steps; ++i) look(step.run());
  look(step.finish());
  return applied;
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
  if (!std::ranges::all_of(exact_losses, [](double loss) { return std::isfinite(loss); })) return std::nullopt;
  ProgressBar progress("plan: formats", options_to_try(places));
  std::vector<SharedDamage> found;
  for (size_t place = 0; place < places.size(); ++place) {
    if (places[place].is_layer()) continue;
    for (size_t option = 1; option < places[place].options.size(); ++option) {
      Plan plan = exact;
      plan[place] = static_cast<int>(option);
      std::vector<double> changes = losses(plan);
      std::ranges::transform(changes, exact_losses, changes.begin(), std::minus());
      found.push_back({places[place].name(), places[place].options[option].name, estimate(changes)});
      log_info("plan: {} in {}: loss {:+.2g} +- {:.1g} nats after {} steps", found.back().place, found.back().option,
               found.back().loss.mean, found.back().loss.error, trials.steps);
      progress.advance();
    }
  }
  return found;
}

int64_t options_to_try(const std::vector<PlannedPlace>& places) {
  int64_t options = 0;
  for (const PlannedPlace& place : places) options += place.is_layer() ? 0 : std::ssize(place.options) - 1;
  return options;
}

int ranks_of_trials(const std::vector<PlannedPlace>& places, int ranks) {
  if (std::ranges::none_of(places, &PlannedPlace::is_wire)) return 1;
  int factor = 2;  // divides the global batch as `ranks` does
  while (ranks % factor != 0) ++factor;
  return factor;
}

std::vector<SharedDamage> shared_damages(const Config& config, DType low, SharedTrials trials,
                                         std::vector<PlannedPlace>& places, std::optional<Session>& session,
                                         Communicator& communicator) {
  if (std::ranges::all_of(places, &PlannedPlace::is_layer)) return {};
  trials.ranks = ranks_of_trials(places, trials.ranks);
  if (trials.ranks > kMostTrialRanks) {
    for (PlannedPlace& place : places) {
      if (place.is_wire())
        leave_as_configured(place, fmt::format("trials of {} ranks would need as many models at once", trials.ranks));
    }
    trials.ranks = 1;
  }
  log_info("plan: {} times {} steps for each format of optimizer state and wire, one lowered at a time", trials.windows,
           trials.steps);
  const Config& exact = session->config;
  const HeldState point(*session);
  session.reset();
  const auto found = try_shared(tried(without_fallback(config)), low, places, point, trials, communicator);
  session.emplace(exact, communicator);
  point.hand_over(*session);
  if (found) return *found;
  for (PlannedPlace& place : places) {
    if (!place.is_layer()) leave_as_configured(place, "a training with the most exact options failed");
  }
  return {};
}

double rest_damage(const Config& config, DType low, const std::vector<PlannedPlace>& layers, int64_t batches,
                   Session& session) {
  LoweredPasses passes(session);
  const Config rest = with_plan(config, low, layers, Plan(layers.size(), 0), WorkingWeights::kFp32);
  passes.make_room(rest);
  const AutocastPolicy policy(rest.precision_rules());
  std::vector<double> changes;
  for (const int64_t step : passes.steps_with_targets(batches)) {
    passes.load(step);
    const double exact = passes.loss(nullptr);
    changes.push_back(passes.loss(&policy) - exact);
  }
  const auto damage = damage_of(estimate(changes));
  require<ConfigError>(damage.has_value(),
                       "no plan: with linear layers and attention in fp32 and all else in {0} the loss is not finite: "
                       "give precision.compute=bf16 for plans, or a model that trains in {0} at all",
                       name(low));
  return damage->sum;
}

const DecisionScores& scores_of(const SensitivityAnalysis& analysis, const PrecisionDecision& decision) {
  const auto found = std::ranges::find(analysis.decisions, decision, &DecisionScores::decision);
  MANTISSA_CHECK(found != analysis.decisions.end(), "[advise] '{}' was not analysed", name(decision));
  return *found;
}

std::optional<KnownDamages::Damage> KnownDamages::of(const PlannedPlace& place, const PlaceOption& option) const {
  if (place.is_layer()) {
    Damage sum;
    for (const PrecisionDecision& decision : decisions_of(place, option, low)) {
      const DecisionScores& found = scores_of(layers, decision);
      const auto damage = found.refusal.empty() ? damage_of(found.loss) : std::nullopt;
      if (!damage) return std::nullopt;
      sum.sum += damage->sum;
      if (decision.product && *decision.product != Product::kForward) sum.backward += damage->sum;
      sum.error = std::hypot(sum.error, damage->error);
    }
    return sum;
  }
  if (option.name == place.options.front().name) return Damage{};
  for (const SharedDamage& known : shared) {
    if (known.place == place.name() && known.option == option.name) return damage_of(known.loss);
  }
  throw ContractError(fmt::format("[advise] {} was not tried in {}", place.name(), option.name));
}

void keep_known(std::vector<PlannedPlace>& places, const KnownDamages& damages) {
  for (PlannedPlace& place : places) {
    std::vector<PlaceOption> known;
    for (const PlaceOption& option : place.options) {
      if (damages.of(place, option)) {
        known.push_back(option);
      } else {
        place.refusals.push_back(
            fmt::format("{} {}: gradients or the loss were not finite", place.name(), option.name));
      }
    }
    place.options = std::move(known);
  }
}

}  // namespace mantissa
