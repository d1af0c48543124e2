// Transitions of the scale: overflow, growth, floor, cap, hysteresis, loss faults.
#include "amp/grad_scaler.h"

#include <gtest/gtest.h>

#include "tests/amp/scaler_steps.h"

namespace mantissa {
namespace {

using testing::run;
using testing::small_dynamic_config;

constexpr auto kClean = StepOutcome::kClean;
constexpr auto kOverflow = StepOutcome::kGradientOverflow;
constexpr auto kLossFault = StepOutcome::kLossFault;

TEST(GradScalerTest, GrowsAfterTheIntervalAndNotBefore) {
  GradScaler scaler(small_dynamic_config());
  for (const float expected : {2048.0f, 4096.0f}) {
    EXPECT_EQ(run(scaler, kClean), ScalerEvent::kUnchanged);
    EXPECT_EQ(run(scaler, kClean), ScalerEvent::kUnchanged);
    EXPECT_EQ(run(scaler, kClean), ScalerEvent::kGrew);
    EXPECT_EQ(scaler.current_scale(), expected);
    EXPECT_EQ(scaler.state().clean_steps, 0);
  }
}

TEST(GradScalerTest, OverflowBacksOffAndRestartsTheCount) {
  GradScaler scaler(small_dynamic_config());
  run(scaler, 2, kClean);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);
  EXPECT_EQ(scaler.current_scale(), 512.0f);
  run(scaler, 2, kClean);
  EXPECT_EQ(scaler.current_scale(), 512.0f);
  EXPECT_EQ(run(scaler, kClean), ScalerEvent::kGrew);
  EXPECT_EQ(scaler.current_scale(), 1024.0f);
}

TEST(GradScalerTest, GrowthDelayHoldsForTheStartAndAfterAnOverflowOnly) {
  ScalerConfig config = small_dynamic_config();
  config.growth_delay = 2;
  GradScaler scaler(config);
  EXPECT_EQ(run(scaler, 5, kClean).back(), ScalerEvent::kGrew);  // 2 + 3
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrew);
  run(scaler, kOverflow);
  EXPECT_EQ(run(scaler, 4, kClean).back(), ScalerEvent::kUnchanged);
  EXPECT_EQ(run(scaler, kClean), ScalerEvent::kGrew);
}

TEST(GradScalerTest, HysteresisForgivesOverflowsUntilGrowth) {
  ScalerConfig config = small_dynamic_config();
  config.hysteresis = 3;
  GradScaler scaler(config);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kHysteresisConsumed);
  run(scaler, 2, kClean);  // does not refill: the interval is not complete
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kHysteresisConsumed);
  EXPECT_EQ(scaler.current_scale(), 1024.0f);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);  // stays used up
  EXPECT_EQ(scaler.current_scale(), 256.0f);
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrew);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kHysteresisConsumed);  // refilled
}

TEST(GradScalerTest, HysteresisMayRefillOnEveryCleanStep) {
  ScalerConfig config = small_dynamic_config();
  config.hysteresis = 2;
  config.refill = HysteresisRefill::kOnCleanStep;
  GradScaler scaler(config);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kHysteresisConsumed);
    run(scaler, kClean);
  }
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kHysteresisConsumed);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);
}

TEST(GradScalerTest, OverflowAtTheFloorIsAFault) {
  ScalerConfig config = small_dynamic_config();
  config.min_scale = 300.0f;
  GradScaler scaler(config);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);  // 256 is below the floor: stops at it
  EXPECT_EQ(scaler.current_scale(), 300.0f);
  for (int i = 0; i < 3; ++i) {
    const ScalerEvent event = run(scaler, kOverflow);
    EXPECT_EQ(event, ScalerEvent::kAtFloorFault);
    EXPECT_TRUE(is_fault(event));
  }
  EXPECT_EQ(scaler.current_scale(), 300.0f);
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrew);
  EXPECT_EQ(scaler.current_scale(), 600.0f);
}

TEST(GradScalerTest, OverflowAtTheFloorMayBeClamped) {
  ScalerConfig config = small_dynamic_config();
  config.min_scale = 1024.0f;
  config.floor_policy = FloorPolicy::kClamp;
  GradScaler scaler(config);
  const ScalerEvent event = run(scaler, kOverflow);
  EXPECT_EQ(event, ScalerEvent::kHeldAtFloor);
  EXPECT_FALSE(is_fault(event));
  EXPECT_EQ(scaler.current_scale(), 1024.0f);
}

TEST(GradScalerTest, AnOverflowAtTheFloorStillRestartsTheCount) {
  ScalerConfig config = small_dynamic_config();
  config.min_scale = 1024.0f;
  GradScaler scaler(config);
  run(scaler, 2, kClean);
  run(scaler, kOverflow);
  EXPECT_EQ(run(scaler, 2, kClean).back(), ScalerEvent::kUnchanged);
  EXPECT_EQ(run(scaler, kClean), ScalerEvent::kGrew);
}

TEST(GradScalerTest, GrowthStopsAtTheCap) {
  ScalerConfig config = small_dynamic_config();
  config.max_scale = 3000.0f;
  GradScaler scaler(config);
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrew);
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrowthCapped);
  EXPECT_EQ(scaler.current_scale(), 2048.0f);
  EXPECT_EQ(scaler.state().clean_steps, 0);
}

TEST(GradScalerTest, GrowthNeverReachesInfinity) {
  ScalerConfig config = small_dynamic_config();
  config.init_scale = 0x1p127f;
  GradScaler scaler(config);
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrowthCapped);
  EXPECT_EQ(scaler.current_scale(), 0x1p127f);
}

TEST(GradScalerTest, ALossFaultLeavesTheStateAlone) {
  ScalerConfig config = small_dynamic_config();
  config.hysteresis = 2;
  GradScaler scaler(config);
  run(scaler, 2, kClean);
  run(scaler, kOverflow);
  run(scaler, 2, kClean);
  const GradScaler::State before = scaler.state();
  for (int i = 0; i < 100; ++i) {
    const ScalerEvent event = run(scaler, kLossFault);
    EXPECT_EQ(event, ScalerEvent::kLossFault);
    EXPECT_TRUE(is_fault(event));
  }
  EXPECT_EQ(scaler.state(), before);
  EXPECT_EQ(run(scaler, kClean), ScalerEvent::kGrew);  // the third clean step counts as before
}

TEST(GradScalerTest, ALossFaultNeedsNoBackwardPass) {
  GradScaler scaler(small_dynamic_config());
  EXPECT_FALSE(scaler.step(kLossFault));
  EXPECT_EQ(scaler.update(), ScalerEvent::kLossFault);
  scaler.scale();  // found after the first of several micro-batches
  EXPECT_FALSE(scaler.step(kLossFault));
  EXPECT_EQ(scaler.update(), ScalerEvent::kLossFault);
}

TEST(GradScalerTest, WithoutScalingTheCheckAndTheSkipRemain) {
  ScalerConfig config;
  config.mode = ScalerMode::kNone;
  config.init_scale = 65536.0f;
  GradScaler scaler(config);
  EXPECT_EQ(scaler.scale(), 1.0f);
  EXPECT_EQ(scaler.unscale(), 1.0f);
  EXPECT_FALSE(scaler.step(kOverflow));
  EXPECT_EQ(scaler.update(), ScalerEvent::kAtFloorFault);  // nothing that could be lowered
  EXPECT_EQ(run(scaler, kLossFault), ScalerEvent::kLossFault);
  for (const ScalerEvent event : run(scaler, 5000, kClean)) EXPECT_EQ(event, ScalerEvent::kUnchanged);
  EXPECT_EQ(scaler.current_scale(), 1.0f);
}

TEST(GradScalerTest, AStaticScaleNeverMoves) {
  ScalerConfig config = small_dynamic_config();
  config.mode = ScalerMode::kStatic;
  GradScaler scaler(config);
  for (const ScalerEvent event : run(scaler, 10, kClean)) EXPECT_EQ(event, ScalerEvent::kUnchanged);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kAtFloorFault);
  EXPECT_EQ(scaler.current_scale(), 1024.0f);
  config.floor_policy = FloorPolicy::kClamp;
  GradScaler clamping(config);
  EXPECT_EQ(run(clamping, kOverflow), ScalerEvent::kHeldAtFloor);
}

TEST(GradScalerTest, UnscaleRoundsTheReciprocalOnce) {
  ScalerConfig config = small_dynamic_config();
  for (const float scale : {3.0f, 65536.0f, 1000.5f, 0x1p-20f, 0x1p127f}) {
    config.min_scale = 0.0f;
    config.init_scale = scale;
    GradScaler scaler(config);
    scaler.scale();
    EXPECT_EQ(scaler.unscale(), static_cast<float>(1.0 / static_cast<double>(scale)));
  }
}

TEST(GradScalerTest, TheScaleIsFixedWithinAWindow) {
  ScalerConfig config = small_dynamic_config();
  config.growth_interval = 1;
  GradScaler scaler(config);
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch) EXPECT_EQ(scaler.scale(), 1024.0f);
  EXPECT_EQ(scaler.unscale(), 0x1p-10f);
  scaler.step(kClean);
  EXPECT_EQ(scaler.current_scale(), 1024.0f);
  scaler.update();
  EXPECT_EQ(scaler.scale(), 2048.0f);
}

}  // namespace
}  // namespace mantissa
