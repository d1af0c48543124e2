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

// A message that starts with the path of a setting ("device: nothing is named …"), behind the place where the setting
// was written, if that is known. For errors that are found where origins are not.
std::string located(const std::string& message, const ConfigOrigins& origins);

}  // namespace mantissa
