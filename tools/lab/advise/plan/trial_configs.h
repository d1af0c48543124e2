// Configurations of trainings that are done for a plan's sake.
#pragma once

#include "tools/lab/advise/plan/plan_places.h"
#include "tools/lab/advise/plan/plan_validation.h"

namespace mantissa {

// That begins anew and leaves nothing behind.
Config tried(Config config);
// Whose precision is what it is for a whole run.
Config without_fallback(Config config);
// Those that a plan is compared with: `low` first, with all that a plan decides about beside layers as configured, then
// fp32, with the most exact of that.
std::vector<NamedConfig> references(const Config& config, DType low, const std::vector<PlannedPlace>& places);

}  // namespace mantissa
