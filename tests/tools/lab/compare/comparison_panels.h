// The panels of the page of `mantissa compare`, in order.
#pragma once

#include <string>
#include <vector>

namespace mantissa::testing {

inline std::vector<std::string> comparison_panels() {
  return {"verdict", "figures-table", "curves",       "success",   "scales",
          "cost",    "saving",        "format-error", "underflow", "gemm"};
}

}  // namespace mantissa::testing
