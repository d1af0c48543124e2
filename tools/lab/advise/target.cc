#include "tools/lab/advise/target.h"

namespace mantissa {

Target absent_target(const Hardware& hardware, CostModel& costs) {
  return {.title = std::string(hardware.title),
          .costs = &costs,
          .hardware = &hardware,
          .narrow_units = hardware.narrow_units,
          .memory_bytes = hardware.memory_bytes};
}

TargetStep step_on(const Target& target, Config config, int ranks) {
  if (target.hardware != nullptr) config.device = "cuda";  // which packs no weights, whatever is here
  return {.memory = predict_memory_table(config, ranks, ContributionPath::kExchanged, target.narrow_units),
          .calls = walk_calls(config, ranks, target.narrow_units, target.packing)};
}

}  // namespace mantissa
