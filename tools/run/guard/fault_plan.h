// The faults of a run (configuration section `test`): those that are listed, and those that are drawn from a seed.
#pragma once

#include <string>
#include <vector>

#include "comm/sharded_state.h"
#include "tools/config/config.h"

namespace mantissa {

struct PlannedFault : Fault {
  std::string name{};  // "test.faults[0]" or "test.random[3]"
};

// "flip of bit 3 in master, element 7 of 'wte.weight', rank 1, step 5"
std::string describe(const PlannedFault& fault);

// All ranks get the same faults: step, rank, parameter and element are drawn from the seed alone. ConfigError that
// names the setting of a fault that cannot take place in this model.
std::vector<PlannedFault> plan_faults(const Config& config, const ShardedState& state);

}  // namespace mantissa
