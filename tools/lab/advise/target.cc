#include "tools/lab/advise/target.h"

namespace mantissa {

Target absent_target(const Hardware& hardware, CostModel& costs) {
  return {.title = std::string(hardware.title),
          .costs = &costs,
          .hardware = &hardware,
          .fp8_gemm_support = hardware.fp8_gemm_support,
          .memory_bytes = hardware.memory_bytes};
}

TargetStep step_on(const Target& target, Config config, int ranks) {
  if (target.hardware != nullptr) config.device = "cuda";  // which packs no weights, whatever is here
  return {.memory = predict_memory_table(config, ranks, ContributionPath::kExchanged, target.fp8_gemm_support),
          .calls = walk_calls(config, ranks, target.fp8_gemm_support, target.packing)};
}

}  // namespace mantissa
