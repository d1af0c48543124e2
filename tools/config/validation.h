// Rejects impossible combinations of settings before anything is allocated.
#pragma once

#include <string>

#include "tools/config/config.h"

namespace mantissa {

// ConfigError that lists every problem: keys, values, where they were written (by `origins`), and what to do. Settings
// without an effect are not errors: see tools/train/ineffective_settings.h.
void validate(const Config& config, const ConfigOrigins& origins = {});

// Checks what depends on the number of ranks: batch sizes, and ranks named in injected faults.
void validate_for_ranks(const Config& config, int ranks, const ConfigOrigins& origins = {});

// Puts the place where a setting was written, if known, in front of a message that starts with the setting's path
// ("device: nothing is named …"). For errors found where origins are not known.
std::string located(const std::string& message, const ConfigOrigins& origins);

}  // namespace mantissa
