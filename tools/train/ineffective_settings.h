// Finds settings that have no effect in this run, for warnings.
#pragma once

#include <string>
#include <vector>

#include "comm/gradient_reducer.h"
#include "tools/config/config.h"

namespace mantissa {

struct IneffectiveSetting {
  std::string path;  // also that of a section; of a phase by the name of the whole training's
  std::string text;  // with its reason: "precision.recipe = mxfp8 (gpt.yaml:3:5) has no effect: …"
};

// Those of all phases. A setting shared by several phases is effective if it has an effect in any. `ranks`: 0 where
// their number is not known. ConfigError if the model refuses the configuration.
std::vector<IneffectiveSetting> ineffective_settings(const Config& config, const ConfigOrigins& origins, int ranks = 0,
                                                     ContributionPath path = ContributionPath::kExchanged);

// Settings that can be trained with, but hardly are meant, each with its reason.
std::vector<std::string> doubtful_settings(const Config& config);

}  // namespace mantissa
