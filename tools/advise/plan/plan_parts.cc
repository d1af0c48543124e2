#include "tools/advise/plan/plan_parts.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace mantissa {
namespace {

struct Damage {
  double mean = 0.0, error = 0.0;
};

// What the decisions of an option may do, added up: of each its mean and one standard error above, so that what is not
// known well is not taken for harmless. A loss that falls when something is lowered is noise, or luck that nobody
// should plan with. Nothing where one of them cannot be taken.
std::optional<Damage> damage_of(const std::vector<PrecisionDecision>& decisions,
                                const SensitivityAnalysis& sensitivity) {
  Damage sum;
  for (const PrecisionDecision& decision : decisions) {
    const auto found = std::find_if(sensitivity.decisions.begin(), sensitivity.decisions.end(),
                                    [&](const DecisionScores& one) { return one.decision == decision; });
    MANTISSA_CHECK(found != sensitivity.decisions.end(), "[advise] '{}' was not analysed", name(decision));
    if (!found->refusal.empty() || !std::isfinite(found->loss.error)) return std::nullopt;
    sum.mean += std::max(0.0, found->loss.mean) + found->loss.error;
    sum.error = std::hypot(sum.error, found->loss.error);
  }
  return sum;
}

}  // namespace

void take_known(std::vector<PlannedLayer>& layers, DType low, const SensitivityAnalysis& sensitivity) {
  for (PlannedLayer& layer : layers) {
    std::erase_if(layer.options, [&](const LayerOption& option) {
      if (damage_of(decisions_of(layer, option, low), sensitivity)) return false;
      layer.refusals.push_back(fmt::format("{} {}: gradients or the loss were not finite", layer.name(), option.name));
      return true;
    });
  }
}

PlanProblem problem_of(const std::vector<PlannedLayer>& layers, DType low, const OptionCosts& costs,
                       const SensitivityAnalysis& sensitivity, StepCost& common) {
  common = costs.low;
  PlanProblem problem;
  for (size_t i = 0; i < layers.size(); ++i) {
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
    PlanDecision decision{.name = layers[i].name(), .options = {}};
    for (size_t option = 0; option < layers[i].options.size(); ++option) {
      const Damage damage = *damage_of(decisions_of(layers[i], layers[i].options[option], low), sensitivity);
      decision.options.push_back({.name = layers[i].options[option].name,
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
