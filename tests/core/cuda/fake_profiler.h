// A profiler linked into the test: NVTX finds it through the symbol that it keeps for such ones.
#pragma once

#include <string>
#include <vector>

namespace mantissa::testing {

// What NVTX has been told: "domain mantissa", "category 1 phase", "string forward", "push forward in 1", "pop".
std::vector<std::string>& profiler_calls();

}  // namespace mantissa::testing
