#include "amp/precision_fallback.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr FallbackOptions kOptions{.overflows = 3, .window = 10, .clean_steps = 20};

TEST(PrecisionFallback, LiftsALayerThatOverflowsRepeatedlyWithinTheWindow) {
  PrecisionFallback fallback(kOptions);
  EXPECT_FALSE(fallback.overflowed(0, "a", 2));
  EXPECT_FALSE(fallback.overflowed(5, "a", 2));
  EXPECT_FALSE(fallback.overflowed(10, "a", 2));  // the first is 10 steps ago
  EXPECT_TRUE(fallback.lifts().empty());
  EXPECT_TRUE(fallback.overflowed(14, "a", 2));
  EXPECT_EQ(fallback.lifts(), (LayerLifts{{"a", 1}}));
  // It counts anew.
  EXPECT_FALSE(fallback.overflowed(15, "a", 1));
  EXPECT_FALSE(fallback.overflowed(16, "a", 1));
  EXPECT_TRUE(fallback.overflowed(17, "a", 1));
  EXPECT_EQ(fallback.lifts(), (LayerLifts{{"a", 2}}));
}

TEST(PrecisionFallback, CountsEachLayerForItself) {
  PrecisionFallback fallback(kOptions);
  for (int64_t step = 0; step < 2; ++step) {
    EXPECT_FALSE(fallback.overflowed(step, "a", 1));
    EXPECT_FALSE(fallback.overflowed(step, "b", 1));
  }
  EXPECT_TRUE(fallback.overflowed(2, "b", 1));
  EXPECT_EQ(fallback.lifts(), (LayerLifts{{"b", 1}}));
}

TEST(PrecisionFallback, WithoutRoomNothingIsLifted) {
  PrecisionFallback fallback({.overflows = 1});
  EXPECT_FALSE(fallback.overflowed(0, "a", 0));
  EXPECT_TRUE(fallback.lifts().empty());
}

TEST(PrecisionFallback, OffItDoesNothing) {
  PrecisionFallback fallback({});
  for (int64_t step = 0; step < 100; ++step) EXPECT_FALSE(fallback.overflowed(step, "a", 2));
  EXPECT_TRUE(fallback.state().empty());
}

// The overflow of step 4 and 20 clean ones behind it: step 25 is trained lower again.
TEST(PrecisionFallback, GoesBackAfterCleanSteps) {
  PrecisionFallback fallback({.overflows = 1, .window = 10, .clean_steps = 20});
  fallback.overflowed(4, "a", 3);
  fallback.overflowed(4, "a", 2);
  EXPECT_FALSE(fallback.is_due(24));
  EXPECT_TRUE(fallback.settle(24).empty());
  EXPECT_TRUE(fallback.is_due(25));
  EXPECT_EQ(fallback.settle(25), std::vector<std::string>{"a"});
  EXPECT_EQ(fallback.lifts(), (LayerLifts{{"a", 1}}));
  EXPECT_FALSE(fallback.is_due(25));
  // From here on it takes twice as many.
  EXPECT_FALSE(fallback.is_due(64));
  EXPECT_TRUE(fallback.is_due(65));
}

TEST(PrecisionFallback, AnOverflowPutsOffTheReturn) {
  PrecisionFallback fallback({.overflows = 2, .window = 10, .clean_steps = 20});
  fallback.lift_now(0, "a", 1);
  EXPECT_FALSE(fallback.overflowed(15, "a", 0));
  EXPECT_FALSE(fallback.is_due(21));
  EXPECT_TRUE(fallback.is_due(36));
}

// A layer that goes up and down for ever does so ever more rarely, but no more rarely than every 64 times the steps.
TEST(PrecisionFallback, EachReturnDoublesTheWaitUpToABound) {
  PrecisionFallback fallback({.overflows = 1, .window = 10, .clean_steps = 20});
  int64_t step = 0;
  for (int returns = 0; returns < 9; ++returns) {
    fallback.lift_now(step, "a", 1);
    const int64_t wait = 20 * std::min<int64_t>(int64_t{1} << returns, 64);
    EXPECT_FALSE(fallback.is_due(step + wait)) << returns;
    EXPECT_EQ(fallback.settle(step + wait + 1).size(), 1u) << returns;
    step += wait + 1;
  }
}

TEST(PrecisionFallback, TheWholeModelLeavesFp16AndGoesBack) {
  PrecisionFallback fallback({.clean_steps = 5});
  fallback.leave_fp16(3);
  EXPECT_TRUE(fallback.leaves_fp16());
  EXPECT_TRUE(fallback.lifts().empty());
  EXPECT_EQ(fallback.settle(9), std::vector<std::string>{PrecisionFallback::kWholeModel});
  EXPECT_FALSE(fallback.leaves_fp16());
}

TEST(PrecisionFallback, GoesOnFromItsState) {
  PrecisionFallback straight(kOptions);
  straight.overflowed(3, "a", 2);
  straight.overflowed(4, "a", 2);
  PrecisionFallback resumed(kOptions, straight.state());
  EXPECT_TRUE(resumed.overflowed(5, "a", 2));
  EXPECT_TRUE(straight.overflowed(5, "a", 2));
  EXPECT_EQ(resumed.state(), straight.state());
}

TEST(PrecisionFallback, RefusesOptionsWithoutSense) {
  EXPECT_THROW(validate(FallbackOptions{.overflows = -1}), ConfigError);
  EXPECT_THROW(validate(FallbackOptions{.overflows = 2, .window = 1}), ConfigError);
  EXPECT_THROW(validate(FallbackOptions{.window = 0}), ConfigError);
  EXPECT_THROW(validate(FallbackOptions{.clean_steps = 0}), ConfigError);
  EXPECT_NO_THROW(validate(kOptions));
}

}  // namespace
}  // namespace mantissa
