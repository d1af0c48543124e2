// Sums of values, their references and their differences.
#pragma once

#include "core/backend/probe_args.h"

namespace mantissa::cpu {

void compare(const CompareArgs& args);

}  // namespace mantissa::cpu
