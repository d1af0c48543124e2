// What a sensitivity analysis has found, for people and for programs.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

namespace mantissa {

std::string to_text(const SensitivityAnalysis& analysis);
// What is not finite is null.
nlohmann::json to_json(const SensitivityAnalysis& analysis);

}  // namespace mantissa
