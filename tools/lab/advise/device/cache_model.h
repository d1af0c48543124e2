// CacheModel: which operands of a step's calls a cache still holds, from where they lay in the walk.
#pragma once

#include <unordered_map>
#include <vector>

#include "tools/lab/advise/calls/step_walk.h"

namespace mantissa {

// By call and operand: whether it has to come from memory, because more bytes than the cache holds were touched since
// the operand's memory was touched last. Counts in pages; an operand is cold if most of its pages are. What the step
// touches first was touched last by the step before, which is the same.
std::vector<std::vector<bool>> cold_operands(const StepCalls& step, double cache_bytes);

// Of this machine's last level; 32 MiB where the system does not say.
double last_level_cache_bytes();

}  // namespace mantissa
