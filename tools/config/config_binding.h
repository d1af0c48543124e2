// The one place that gives every setting its key, type and range. Reading, printing, comparing and the check of
// configs/reference.yaml all go through it.
#pragma once

#include "core/io/config_reader.h"
#include "tools/config/config.h"

namespace mantissa {

void bind_config(ConfigVisitor& visitor, Config& config);

// What other programs call our settings.
ConfigSynonyms config_synonyms();

// Path to printed value of every setting.
std::map<std::string, std::string> flatten(const Config& config);

}  // namespace mantissa
