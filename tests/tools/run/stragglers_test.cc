#include "tools/run/guard/outliers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "core/profile/range.h"
#include "tools/run/guard/black_box.h"

namespace mantissa {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Seconds in the phases data, forward and backward.
PhaseTimes times(double data, double forward, double backward) {
  PhaseTimes all{};
  all[1] = data;
  all[2] = forward;
  all[3] = backward;
  return all;
}

StragglerDetector detector(int ranks, double factor) { return {{.window = 50, .factor = factor}, ranks}; }

TEST(Stragglers, ASlowRankIsNamedWithItsPhaseOncePerEpisode) {
  StragglerDetector four = detector(4, 1.5);
  const PhaseTimes usual = times(0.1, 0.5, 1.0), slow = times(1.2, 0.5, 1.1);
  EXPECT_THAT(four.judge({usual, usual, usual, usual}, 50), IsEmpty());
  auto changes = four.judge({usual, usual, slow, usual}, 50);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, 2);
  EXPECT_TRUE(changes[0].is_slow);
  EXPECT_EQ(changes[0].phase, "data");
  EXPECT_DOUBLE_EQ(changes[0].seconds, 2.8);
  EXPECT_DOUBLE_EQ(changes[0].others_seconds, 1.6);
  EXPECT_DOUBLE_EQ(changes[0].phase_seconds, 1.2);
  EXPECT_DOUBLE_EQ(changes[0].others_phase_seconds, 0.1);
  EXPECT_EQ(four.slow_ranks(), 1);
  EXPECT_THAT(four.judge({usual, usual, slow, usual}, 50), IsEmpty());
  // A little better is not over yet.
  EXPECT_THAT(four.judge({usual, usual, times(0.7, 0.5, 1.0), usual}, 50), IsEmpty());
  changes = four.judge({usual, usual, usual, usual}, 50);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_FALSE(changes[0].is_slow);
  EXPECT_EQ(four.slow_ranks(), 0);
  EXPECT_THAT(four.judge({usual, usual, slow, usual}, 50), SizeIs(1)) << "another episode";
}

TEST(Stragglers, TwoRanksAreComparedWithEachOther) {
  StragglerDetector two = detector(2, 1.3);
  EXPECT_THAT(two.judge({times(0.0, 1.0, 1.0), times(0.0, 1.0, 1.5)}, 50), IsEmpty());
  const auto changes = two.judge({times(0.0, 1.0, 1.0), times(0.0, 1.0, 1.7)}, 50);
  ASSERT_THAT(changes, SizeIs(1));
  EXPECT_EQ(changes[0].rank, 1);
  EXPECT_EQ(changes[0].phase, "backward");
}

TEST(Stragglers, TwoSlowRanksOfFiveDoNotHideEachOther) {
  StragglerDetector five = detector(5, 1.3);
  const PhaseTimes usual = times(0.0, 1.0, 1.0), slow = times(0.0, 2.0, 1.0);
  EXPECT_THAT(five.judge({slow, usual, usual, slow, usual}, 50), SizeIs(2));
  EXPECT_EQ(five.slow_ranks(), 2);
}

TEST(Stragglers, LessThanAMillisecondAStepIsNoise) {
  StragglerDetector two = detector(2, 1.3);
  EXPECT_THAT(two.judge({times(0.0, 0.01, 0.01), times(0.0, 0.01, 0.05)}, 50), IsEmpty());
  EXPECT_THAT(two.judge({times(0.0, 0.01, 0.01), times(0.0, 0.01, 0.07)}, 50), SizeIs(1));
}

TEST(Stragglers, OneRankHasNoOthers) { EXPECT_THAT(detector(1, 1.3).judge({times(1.0, 1.0, 1.0)}, 50), IsEmpty()); }

TEST(Stragglers, SaysHowSlowAndWhere) {
  const StragglerChange change{.rank = 3,
                               .is_slow = true,
                               .seconds = 1.55,
                               .others_seconds = 0.775,
                               .phase = "data",
                               .phase_seconds = 0.9,
                               .others_phase_seconds = 0.105};
  EXPECT_EQ(describe(change, "b", 50),
            "rank 3 (node b) is slow: 31.0 ms of work a step, others 15.5 ms;\n  in data 18.0 ms, others 2.1 ms");
  EXPECT_EQ(describe({.rank = 3}, "b", 50), "rank 3 (node b) is no longer slow");
}

// Times are of the innermost phase, without waits.
TEST(Stragglers, TheBlackBoxCountsWorkAndLeavesWaitsOut) {
  using Clock = std::chrono::steady_clock;
  const auto pause = std::chrono::milliseconds(20);
  const std::string folder = ::testing::TempDir() + "/stragglers";
  std::filesystem::remove_all(folder);
  BlackBox box(folder, 0, 1);
  const auto start = Clock::now();
  {
    const Range step(RangeKind::kPhase, "step");
    {
      const Range phase(RangeKind::kPhase, "forward");
      std::this_thread::sleep_for(pause);
    }
    const Range phase(RangeKind::kPhase, "reduce");
    box.begin_wait();
    const uint64_t number = box.begin_collective("all_gather", 8);  // an event within a wait
    std::this_thread::sleep_for(pause);
    box.end_collective("all_gather", number);
    box.end_wait();
  }
  const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  const PhaseTimes work = box.work_seconds(kStepPhases);
  EXPECT_GE(work[2], 0.02);                                // forward
  EXPECT_LE(work[0] + work[2] + work[4], elapsed - 0.02);  // step, forward, reduce: without the wait
  EXPECT_EQ(work[1], 0.0);
}

}  // namespace
}  // namespace mantissa
