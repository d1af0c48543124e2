// Ranges without a profiler and without a GPU, which is the usual case.
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/cuda/runtime/runtime.h"
#include "core/profile/range.h"

namespace mantissa {
namespace {

TEST(NvtxRanges, NothingIsInstalledWithoutAProfiler) {
  ::unsetenv("NVTX_INJECTION64_PATH");  // of a profiler that the tests themselves may run under
  cuda::send_ranges_to_profiler();
  { const Range range(RangeKind::kPhase, "forward"); }
  EXPECT_EQ(set_range_sink(nullptr), nullptr);
}

}  // namespace
}  // namespace mantissa
