#include "tools/lab/advise/plan/plan_costs.h"

#include <algorithm>
#include <map>

namespace mantissa {
namespace {

// "blocks.12.mlp.up" as "blocks.#.mlp.up".
std::string kind_of(const PlannedPlace& place) {
  std::string kind;
  for (const char c : place.name()) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit) kind += c;
    if (is_digit && !kind.ends_with('#')) kind += '#';
  }
  return kind;
}

}  // namespace

StepCost step_cost(const Config& config, const Target& target, int ranks) {
  const TargetStep step = step_on(target, config, ranks);
  return {.seconds = predict(step.calls, *target.costs).step_seconds(),
          .bytes = static_cast<double>(step.memory.total()),
          .sent_bytes = step.calls.sent(),
          .device_bytes = target.memory_bytes};
}

OptionCosts option_costs(const Config& config, DType low, const std::vector<PlannedPlace>& places, const Target& target,
                         int ranks) {
  OptionCosts costs{.low = step_cost(with_plan(config, low, {}, {}), target, ranks), .changes = {}};
  std::map<std::pair<std::string, std::string>, StepCost> known;  // by kind and option
  for (const PlannedPlace& place : places) {
    std::vector<StepCost>& changes = costs.changes.emplace_back();
    for (size_t option = 0; option < place.options.size(); ++option) {
      const auto [entry, is_new] = known.try_emplace({kind_of(place), place.options[option].name});
      if (is_new) {
        const StepCost cost = step_cost(with_plan(config, low, {place}, {static_cast<int>(option)}), target, ranks);
        entry->second = {.seconds = cost.seconds - costs.low.seconds, .bytes = cost.bytes - costs.low.bytes};
      }
      changes.push_back(entry->second);
    }
  }
  return costs;
}

}  // namespace mantissa
