#include "tools/lab/advise/plan/trial_configs.h"

#include "tools/lab/experiment/candidates.h"

namespace mantissa {
namespace {

Config candidate_in(const Config& config, const std::string& name) {
  return chosen_candidates(config, {name}, "a plan's reference").front().config;
}

}  // namespace

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

std::vector<NamedConfig> references(const Config& config, DType low, const std::vector<PlannedPlace>& places) {
  const std::string low_name(name(low)), exact_name(name(DType::kF32));
  const Config exact = with_shared(config, places, uniform_plan(places, low, exact_name));
  return {{.name = low_name, .config = candidate_in(config, low_name)},
          {.name = exact_name, .config = candidate_in(exact, exact_name)}};
}

}  // namespace mantissa
