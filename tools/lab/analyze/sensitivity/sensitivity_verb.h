// `mantissa analyze sensitivity`.
#pragma once

#include <string>

#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa {

// Prints the report and, with a path, writes its figures there as JSON. Returns the exit code.
int sensitivity_verb(const SensitivityRequest& request, const std::string& json);

}  // namespace mantissa
