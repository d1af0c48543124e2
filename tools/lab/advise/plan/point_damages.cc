#include "tools/lab/advise/plan/point_damages.h"

#include <algorithm>
#include <cmath>

#include "amp/autocast_policy.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/lab/advise/plan/shared_options.h"
#include "tools/lab/advise/plan/trial_configs.h"
#include "tools/lab/analyze/sensitivity/passes.h"

namespace mantissa {

double rest_damage(const Config& config, DType low, const std::vector<PlannedPlace>& layers, int64_t batches,
                   Session& session) {
  LoweredPasses passes(session);
  const Plan all_exact(layers.size(), 0);
  const Config rest = with_plan(config, low, layers, all_exact, WorkingWeights::kFp32);
  passes.make_room(rest);
  const AutocastPolicy policy(rest.precision_rules());
  std::vector<double> changes;
  for (int64_t batch = 0; batch < batches; ++batch) {
    passes.load(session.next_step + batch);
    const double exact = passes.loss(nullptr);
    changes.push_back(passes.loss(&policy) - exact);
  }
  const Estimate found = estimate(changes);
  if (!std::isfinite(found.error)) {
    throw ConfigError(
        fmt::format("no plan: with linear layers and attention in fp32 and all else in {} the loss is not finite: give "
                    "precision.compute=bf16 for plans, or a model that trains in {} at all",
                    name(low), name(low)));
  }
  return std::max(0.0, found.mean) + found.error;
}

std::vector<SharedDamage> shared_damages(const Config& config, DType low, SharedTrials trials,
                                         std::vector<PlannedPlace>& places, std::optional<Session>& session,
                                         Communicator& communicator) {
  constexpr int kMostRanks = 8;  // each has a model
  if (std::ranges::all_of(places, &PlannedPlace::is_layer)) return {};
  trials.ranks = ranks_of_trials(places, trials.ranks);
  if (trials.ranks > kMostRanks) {
    for (PlannedPlace& place : places) {
      if (place.is(SharedFormat::kWire))
        leave_as_configured(place, fmt::format("trials of {} ranks would need as many models at once", trials.ranks));
    }
    trials.ranks = 1;
  }
  log_info("plan: {} times {} steps with one of the formats that all layers share lowered at a time", trials.windows,
           trials.steps);
  const Config& exact = session->config;
  const HeldState point(*session);
  session.reset();
  const auto found = try_shared(tried(without_fallback(config)), low, places, point, trials, communicator);
  session.emplace(exact, communicator);
  point.hand_over(*session);
  if (found) return *found;
  for (PlannedPlace& place : places) {
    if (!place.is_layer()) leave_as_configured(place, "a training with the most exact options did not come through");
  }
  return {};
}

}  // namespace mantissa
