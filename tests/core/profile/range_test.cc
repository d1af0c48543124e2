#include "core/profile/range.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/core/profile/recorded_ranges.h"

namespace mantissa::testing {
namespace {

using Events = std::vector<std::string>;

TEST(Range, NestedOnesArriveInOrder) {
  const RecordedRanges ranges;
  {
    const Range outer(RangeKind::kPhase, "forward");
    { const Range inner(RangeKind::kOp, "gemm"); }
    { const Range inner(RangeKind::kOp, "add"); }
  }
  EXPECT_EQ(ranges.events(), (Events{"begin phase forward", "begin op gemm", "end op gemm", "begin op add",
                                     "end op add", "end phase forward"}));
}

TEST(Range, EndsWhenAnExceptionPasses) {
  const RecordedRanges ranges;
  try {
    const Range range(RangeKind::kPhase, "update");
    throw std::runtime_error("out of memory");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(ranges.events(), (Events{"begin phase update", "end phase update"}));
}

TEST(Range, NothingHappensWithoutASink) {
  ASSERT_EQ(set_range_sink(nullptr), nullptr);
  const Range outside(RangeKind::kPhase, "data");
  const RecordedRanges ranges;
  { const Range inside(RangeKind::kPhase, "forward"); }
  EXPECT_EQ(ranges.events(), (Events{"begin phase forward", "end phase forward"}));
}

TEST(Range, EndsInTheSinkThatItBeganIn) {
  RecordedRanges first;
  auto range = std::make_unique<Range>(RangeKind::kPhase, "backward");
  {
    const RecordedRanges second;
    range.reset();
    EXPECT_EQ(second.events(), Events{});
  }
  EXPECT_EQ(first.events(), (Events{"begin phase backward", "end phase backward"}));
}

TEST(Range, OtherThreadsReachTheSink) {
  const RecordedRanges ranges;
  std::thread([] { const Range range(RangeKind::kOp, "copy"); }).join();
  EXPECT_EQ(ranges.events(), (Events{"begin op copy", "end op copy"}));
}

}  // namespace
}  // namespace mantissa::testing
