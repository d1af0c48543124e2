// Refuses impossible combinations of settings before anything is allocated.
#pragma once

#include "tools/config/config.h"

namespace mantissa {

// ConfigError that lists every problem, naming keys, values, where they were written, and what to do;
// MeaninglessSettings if some are settings that say nothing beside the others.
void validate(const Config& config);

// What depends on the number of ranks: batch sizes, what travels between ranks, and ranks named in injected faults.
void validate_for_ranks(const Config& config, int ranks);

}  // namespace mantissa
