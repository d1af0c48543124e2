#include "core/cuda/runtime/runtime.h"

#include <gtest/gtest.h>

#include "core/profile/range.h"
#include "tests/core/cuda/fake_profiler.h"

namespace mantissa::testing {
namespace {

TEST(NvtxRanges, ReachAProfilerWithTheirNamesRegisteredOnce) {
  cuda::send_ranges_to_profiler();
  cuda::send_ranges_to_profiler();
  for (int i = 0; i < 2; ++i) {
    const Range phase(RangeKind::kPhase, "forward");
    const Range op(RangeKind::kOp, "gemm");
  }
  const std::vector<std::string> expected = {"domain mantissa",
                                             "category 1 phase",
                                             "category 2 op",
                                             "string forward",
                                             "push forward in 1",
                                             "string gemm",
                                             "push gemm in 2",
                                             "pop",
                                             "pop",
                                             "push forward in 1",
                                             "push gemm in 2",
                                             "pop",
                                             "pop"};
  EXPECT_EQ(profiler_calls(), expected);
}

}  // namespace
}  // namespace mantissa::testing
