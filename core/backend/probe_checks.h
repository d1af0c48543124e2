// As kernel_checks.h, for probe_args.h.
#pragma once

#include "core/backend/check_args.h"
#include "core/backend/probe_args.h"

namespace mantissa {

void check_args(const ExponentHistogramArgs& args);
void check_args(const UpdateStagnationArgs& args);
Rows check_args(const RoundingLossesArgs& args);
void check_args(const CompareArgs& args);

}  // namespace mantissa
