#include "tools/lab/advise/plan/plan_parts.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace mantissa {
namespace {

struct Damage {
  double mean = 0.0, error = 0.0;
};

// The mean and one standard error above, so that what is not known well is not taken for harmless. A loss that falls
// when something is lowered is noise, or luck that nobody should plan with. Nothing where it is not finite.
std::optional<Damage> damage_of(const Estimate& loss) {
  if (!std::isfinite(loss.error)) return std::nullopt;
  return Damage{.mean = std::max(0.0, loss.mean) + loss.error, .error = loss.error};
}

// What all decisions of a layer's option may do. Nothing where one of them cannot be taken.
std::optional<Damage> damage_of(const std::vector<PrecisionDecision>& decisions, const SensitivityAnalysis& analysis) {
  Damage sum;
  for (const PrecisionDecision& decision : decisions) {
    const auto found = std::ranges::find(analysis.decisions, decision, &DecisionScores::decision);
    MANTISSA_CHECK(found != analysis.decisions.end(), "[advise] '{}' was not analysed", name(decision));
    const auto damage = found->refusal.empty() ? damage_of(found->loss) : std::nullopt;
    if (!damage) return std::nullopt;
    sum.mean += damage->mean;
    sum.error = std::hypot(sum.error, damage->error);
  }
  return sum;
}

std::optional<Damage> damage_of(const PlannedPlace& place, const PlaceOption& option, const KnownDamages& damages) {
  if (place.is_layer()) return damage_of(decisions_of(place, option, damages.low), damages.layers);
  if (option.name == place.options.front().name) return Damage{};
  for (const SharedDamage& known : damages.shared) {
    if (known.place == place.name() && known.option == option.name) return damage_of(known.loss);
  }
  throw ContractError(fmt::format("[advise] {} was not tried in {}", place.name(), option.name));
}

}  // namespace

void take_known(std::vector<PlannedPlace>& places, const KnownDamages& damages) {
  for (PlannedPlace& place : places) {
    std::vector<PlaceOption> known;
    for (const PlaceOption& option : place.options) {
      if (damage_of(place, option, damages)) {
        known.push_back(option);
      } else {
        place.refusals.push_back(
            fmt::format("{} {}: gradients or the loss were not finite", place.name(), option.name));
      }
    }
    place.options = std::move(known);
  }
}

PlanProblem problem_of(const std::vector<PlannedPlace>& places, const OptionCosts& costs, const KnownDamages& damages,
                       StepCost& common) {
  common = costs.low;
  PlanProblem problem;
  for (size_t i = 0; i < places.size(); ++i) {
    const std::vector<StepCost>& changes = costs.changes[i];
    const auto least = [&](double StepCost::*what) {
      double smallest = changes.front().*what;
      for (const StepCost& change : changes) smallest = std::min(smallest, change.*what);
      return smallest;
    };
    // Costs of options count from the least on, which all plans have.
    const StepCost base{.seconds = least(&StepCost::seconds), .bytes = least(&StepCost::bytes)};
    common.seconds += base.seconds;
    common.bytes += base.bytes;
    PlanDecision decision{.name = places[i].name(), .options = {}};
    for (size_t option = 0; option < places[i].options.size(); ++option) {
      const Damage damage = *damage_of(places[i], places[i].options[option], damages);
      decision.options.push_back({.name = places[i].options[option].name,
                                  .seconds = changes[option].seconds - base.seconds,
                                  .bytes = changes[option].bytes - base.bytes,
                                  .damage = damage.mean,
                                  .damage_error = damage.error});
    }
    problem.decisions.push_back(std::move(decision));
  }
  return problem;
}

}  // namespace mantissa
