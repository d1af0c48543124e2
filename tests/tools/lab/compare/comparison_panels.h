// The panels of the page of `mantissa compare`, by their ids.
#pragma once

#include <string>
#include <vector>

namespace mantissa::testing {

inline const std::vector<std::string> kComparisonPanels = {
    "verdict", "figures-table", "curves", "success", "scales", "cost", "saving", "format-error", "underflow", "gemm"};

}  // namespace mantissa::testing
