#include "tools/advise/plan/trial_configs.h"

#include "tools/experiment/candidates.h"

namespace mantissa {

Config tried(Config config) {
  config.checkpoint.resume = "none";
  config.probe = {};
  config.test = {};
  config.profile = false;
  config.cuda.graph = false;
  return config;
}

Config without_fallback(Config config) {
  config.precision_fallback = {};
  FloorPolicy& floor = config.scaler.scaler.floor_policy;
  if (floor == FloorPolicy::kLift || floor == FloorPolicy::kBf16) floor = FloorPolicy::kFault;
  return config;
}

std::vector<NamedConfig> references(const Config& config, DType low) {
  const std::vector<std::string> names = {std::string(name(low)), std::string(name(DType::kF32))};
  std::vector<NamedConfig> found;
  for (const std::string& wanted : names) {
    for (const Candidate& candidate : candidates_of(config, names)) {
      if (candidate.name == wanted) found.push_back({.name = wanted, .config = candidate.config});
    }
  }
  return found;
}

}  // namespace mantissa
