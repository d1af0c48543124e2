// Finds settings that have no effect in this run, for warnings.
#pragma once

#include <string>
#include <vector>

#include "comm/gradient_reducer.h"
#include "tools/config/config.h"

namespace mantissa {

// Each with its reason, of all phases: "precision.recipe = mxfp8 (gpt.yaml:3:5) has no effect: …". A setting shared by
// several phases is effective if it has an effect in any. `ranks`: 0 where their number is not known. ConfigError if
// the model refuses the configuration.
std::vector<std::string> ineffective_settings(const Config& config, const ConfigOrigins& origins, int ranks = 0,
                                              ContributionPath path = ContributionPath::kExchanged);

// Settings that can be trained with, but hardly are meant, each with its reason.
std::vector<std::string> doubtful_settings(const Config& config);

}  // namespace mantissa
