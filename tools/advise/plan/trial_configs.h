// Configurations of trainings that are done for a plan's sake.
#pragma once

#include "tools/advise/plan/plan_validation.h"

namespace mantissa {

// That begins anew and leaves nothing behind.
Config tried(Config config);
// Whose precision is what it is for a whole run.
Config without_fallback(Config config);
// Those that a plan is compared with: `low` first, then fp32.
std::vector<NamedConfig> references(const Config& config, DType low);

}  // namespace mantissa
