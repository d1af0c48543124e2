// Lists of cases that tests shorten where other cases show the same.
#pragma once

#include <gtest/gtest.h>

namespace mantissa::testing {

// Whether to run all of such a list: with --gtest_also_run_disabled_tests, which `tools/test --slow` gives. Whole cases
// that only it runs are named DISABLED_.
inline bool every_case() { return GTEST_FLAG_GET(also_run_disabled_tests); }

}  // namespace mantissa::testing
