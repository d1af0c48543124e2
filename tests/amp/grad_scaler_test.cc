// Transitions of the scale: overflow, growth, floor, cap, hysteresis, loss faults. Misuse, resume and configurations.
#include "amp/grad_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "core/base/check.h"
#include "tests/amp/scaler_steps.h"
#include "tests/testing/error_of.h"

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
  GradScaler scaler(small_dynamic_config([](auto& c) { c.growth_delay = 2; }));
  EXPECT_EQ(run(scaler, 5, kClean).back(), ScalerEvent::kGrew);  // 2 + 3
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrew);
  run(scaler, kOverflow);
  EXPECT_EQ(run(scaler, 4, kClean).back(), ScalerEvent::kUnchanged);
  EXPECT_EQ(run(scaler, kClean), ScalerEvent::kGrew);
}

TEST(GradScalerTest, HysteresisForgivesOverflowsUntilGrowth) {
  GradScaler scaler(small_dynamic_config([](auto& c) { c.hysteresis = 3; }));
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kHysteresisConsumed);
  run(scaler, 2, kClean);  // does not refill: the interval is not complete
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kHysteresisConsumed);
  EXPECT_EQ(scaler.current_scale(), 1024.0f);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);  // refills nothing
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
  GradScaler scaler(small_dynamic_config([](auto& c) { c.min_scale = 300.0f; }));
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);
  EXPECT_EQ(run(scaler, kOverflow), ScalerEvent::kBackedOff);  // 256 is below the floor, so it stops there
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
  GradScaler scaler(small_dynamic_config([](auto& c) { c.min_scale = 1024.0f; }));
  run(scaler, 2, kClean);
  run(scaler, kOverflow);
  EXPECT_EQ(run(scaler, 2, kClean).back(), ScalerEvent::kUnchanged);
  EXPECT_EQ(run(scaler, kClean), ScalerEvent::kGrew);
}

TEST(GradScalerTest, GrowthStopsAtTheCap) {
  GradScaler scaler(small_dynamic_config([](auto& c) { c.max_scale = 3000.0f; }));
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrew);
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrowthCapped);
  EXPECT_EQ(scaler.current_scale(), 2048.0f);
  EXPECT_EQ(scaler.state().clean_steps, 0);
}

TEST(GradScalerTest, GrowthNeverReachesInfinity) {
  GradScaler scaler(small_dynamic_config([](auto& c) { c.init_scale = 0x1p127f; }));
  EXPECT_EQ(run(scaler, 3, kClean).back(), ScalerEvent::kGrowthCapped);
  EXPECT_EQ(scaler.current_scale(), 0x1p127f);
}

TEST(GradScalerTest, ALossFaultLeavesTheStateAlone) {
  GradScaler scaler(small_dynamic_config([](auto& c) { c.hysteresis = 2; }));
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

TEST(GradScalerTest, ASpikeOfFiniteNumbersLeavesTheStateAsItWas) {
  GradScaler scaler({.growth_interval = 5, .hysteresis = 2});
  run(scaler, kClean);
  const GradScaler::State before = scaler.state();
  EXPECT_EQ(run(scaler, StepOutcome::kSpike), ScalerEvent::kSpike);
  EXPECT_FALSE(is_fault(ScalerEvent::kSpike));
  EXPECT_EQ(scaler.state(), before);
}

TEST(GradScalerTest, ALossFaultNeedsNoBackwardPass) {
  GradScaler scaler(small_dynamic_config());
  EXPECT_FALSE(scaler.step(kLossFault));
  EXPECT_EQ(scaler.update(), ScalerEvent::kLossFault);
  scaler.scale();  // detected after the first of several micro-batches
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
  EXPECT_EQ(scaler.update(), ScalerEvent::kAtFloorFault);  // the scale cannot go lower
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
  GradScaler scaler(small_dynamic_config([](auto& c) { c.growth_interval = 1; }));
  for (int micro_batch = 0; micro_batch < 4; ++micro_batch) EXPECT_EQ(scaler.scale(), 1024.0f);
  EXPECT_EQ(scaler.unscale(), 0x1p-10f);
  scaler.step(kClean);
  EXPECT_EQ(scaler.current_scale(), 1024.0f);
  scaler.update();
  EXPECT_EQ(scaler.scale(), 2048.0f);
}

// ---- Misuse, resume and configurations.

// The message of the ContractError, or "" if none is thrown.
std::string misuse(auto&& call) { return testing::error_of<ContractError>(call); }

TEST(GradScalerStateTest, MisuseIsRefusedWithItsReason) {
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  GradScaler scaler(small_dynamic_config());
  const auto unscale = [&] { scaler.unscale(); };
  const auto step = [&] { scaler.step(kClean); };
  const auto update = [&] { scaler.update(); };

  // before any backward pass
  EXPECT_PRED2(contains, misuse(unscale), "no backward pass was scaled");
  EXPECT_PRED2(contains, misuse(step), "still carry the loss scale");
  EXPECT_PRED2(contains, misuse(update), "no outcome was recorded");
  // gradients accumulated but not unscaled
  scaler.scale();
  EXPECT_PRED2(contains, misuse(step), "still carry the loss scale");
  EXPECT_PRED2(contains, misuse([&] { scaler.step(kOverflow); }), "still carry the loss scale");
  EXPECT_PRED2(contains, misuse(update), "no outcome was recorded");
  // unscaled
  scaler.unscale();
  EXPECT_PRED2(contains, misuse(unscale), "called twice");
  EXPECT_PRED2(contains, misuse([&] { scaler.scale(); }), "already unscaled");
  EXPECT_PRED2(contains, misuse(update), "no outcome was recorded");
  // stepped
  scaler.step(kClean);
  EXPECT_PRED2(contains, misuse(step), "called twice");
  EXPECT_PRED2(contains, misuse([&] { scaler.step(kLossFault); }), "called twice");
  EXPECT_PRED2(contains, misuse(unscale), "called after step()");
  EXPECT_PRED2(contains, misuse([&] { scaler.scale(); }), "already unscaled");
  // the rejected calls changed nothing
  EXPECT_EQ(scaler.update(), ScalerEvent::kUnchanged);
  EXPECT_EQ(scaler.state().clean_steps, 1);
  EXPECT_PRED2(contains, misuse(update), "no outcome was recorded");
}

TEST(GradScalerStateTest, StateIsTakenAndLoadedBetweenWindowsOnly) {
  GradScaler scaler(small_dynamic_config());
  const GradScaler::State saved = scaler.state();
  const auto refused = [&] {
    EXPECT_NE(misuse([&] { scaler.state(); }), "");
    EXPECT_NE(misuse([&] { static_cast<void>(scaler.load_state(saved)); }), "");
  };
  scaler.scale();
  refused();
  scaler.unscale();
  refused();
  scaler.step(kOverflow);
  refused();
  scaler.update();
  EXPECT_TRUE(scaler.load_state(saved));
  EXPECT_EQ(scaler.state(), saved);
}

TEST(GradScalerStateTest, ResumesInTheMiddleOfEveryCount) {
  ScalerConfig config = small_dynamic_config();
  config.hysteresis = 2;
  config.growth_delay = 1;
  const std::vector<StepOutcome> outcomes = {kClean, kClean, kOverflow,  kClean, kOverflow, kClean, kClean,
                                             kClean, kClean, kLossFault, kClean, kClean,    kClean, kOverflow};
  for (size_t stop = 0; stop <= outcomes.size(); ++stop) {
    GradScaler straight(config);
    GradScaler first_half(config);
    for (size_t i = 0; i < stop; ++i) {
      run(straight, outcomes[i]);
      run(first_half, outcomes[i]);
    }
    GradScaler resumed(config);
    ASSERT_TRUE(resumed.load_state(first_half.state()));
    for (size_t i = stop; i < outcomes.size(); ++i) {
      ASSERT_EQ(run(resumed, outcomes[i]), run(straight, outcomes[i])) << "stopped at " << stop << ", step " << i;
      ASSERT_EQ(resumed.state(), straight.state()) << "stopped at " << stop << ", step " << i;
    }
  }
}

TEST(GradScalerStateTest, AStateOfAnotherModeIsNotAdopted) {
  ScalerConfig none;
  none.mode = ScalerMode::kNone;
  GradScaler scaler(small_dynamic_config());
  const GradScaler::State before = scaler.state();
  EXPECT_FALSE(scaler.load_state(GradScaler(none).state()));  // a scale of 1 would take long to grow
  EXPECT_EQ(scaler.state(), before);
}

TEST(GradScalerStateTest, AStaticScaleIsConfiguration) {
  const auto scaler_at = [](float scale) { return GradScaler({.mode = ScalerMode::kStatic, .init_scale = scale}); };
  const GradScaler saved = scaler_at(1024.0f);
  GradScaler scaler = scaler_at(64.0f);
  EXPECT_TRUE(scaler.load_state(saved.state()));
  EXPECT_EQ(scaler.current_scale(), 64.0f);
}

TEST(GradScalerStateTest, AStateBeyondTheConfigurationIsBroughtInside) {
  ScalerConfig config = small_dynamic_config();
  config.min_scale = 8.0f;
  config.max_scale = 4096.0f;
  config.hysteresis = 2;
  GradScaler scaler(config);
  ASSERT_TRUE(scaler.load_state({ScalerMode::kDynamic, 1.0f, -7, 9}));
  EXPECT_EQ(scaler.state(), (GradScaler::State{ScalerMode::kDynamic, 8.0f, 0, 2}));
  ASSERT_TRUE(scaler.load_state({ScalerMode::kDynamic, 65536.0f, 500, 1}));
  EXPECT_EQ(scaler.current_scale(), 4096.0f);
  EXPECT_EQ(run(scaler, kClean), ScalerEvent::kGrowthCapped);  // the shorter interval is complete
}

TEST(GradScalerStateTest, ADamagedStateIsRefused) {
  GradScaler scaler(small_dynamic_config());
  const GradScaler::State before = scaler.state();
  for (const float scale : {NAN, INFINITY, -1.0f}) {
    EXPECT_THROW(static_cast<void>(scaler.load_state({ScalerMode::kDynamic, scale, 0, 1})), CheckpointError);
  }
  EXPECT_THROW(static_cast<void>(scaler.load_state({ScalerMode::kDynamic, 1.0f, 0, 0})), CheckpointError);
  EXPECT_EQ(scaler.state(), before);
}

TEST(GradScalerStateTest, ConfigurationsThatMakeNoSenseAreRefused) {
  const auto refuses = [](const char* key, auto change) {
    ScalerConfig config = small_dynamic_config();
    change(config);
    const std::string error = testing::error_of<ConfigError>([&] { GradScaler scaler(config); });
    EXPECT_NE(error.find(key), std::string::npos) << key << ": " << (error.empty() ? "accepted" : error);
  };
  for (const float scale : {0.0f, -1.0f, NAN, INFINITY}) {
    refuses("init_scale", [&](ScalerConfig& config) { config.init_scale = scale; });
  }
  for (const double factor : {1.0, 0.5, double{NAN}, double{INFINITY}}) {
    refuses("growth_factor", [&](ScalerConfig& config) { config.growth_factor = factor; });
  }
  for (const double factor : {1.0, 0.0, -0.5, double{NAN}}) {
    refuses("backoff_factor", [&](ScalerConfig& config) { config.backoff_factor = factor; });
  }
  refuses("growth_interval", [](ScalerConfig& config) { config.growth_interval = 0; });
  refuses("growth_delay", [](ScalerConfig& config) { config.growth_delay = -1; });
  refuses("hysteresis", [](ScalerConfig& config) { config.hysteresis = 0; });
  for (const float floor : {-1.0f, 2000.0f, NAN}) {
    refuses("min_scale", [&](ScalerConfig& config) { config.min_scale = floor; });
  }
  for (const float cap : {1000.0f, NAN, INFINITY}) {
    refuses("max_scale", [&](ScalerConfig& config) { config.max_scale = cap; });
  }
}

TEST(GradScalerStateTest, UnusedSettingsAreNotChecked) {
  ScalerConfig config;
  config.growth_factor = 0.0;
  config.mode = ScalerMode::kStatic;
  EXPECT_NO_THROW(GradScaler{config});
  config.init_scale = 0.0f;
  EXPECT_THROW(GradScaler{config}, ConfigError);
  config.mode = ScalerMode::kNone;
  EXPECT_NO_THROW(GradScaler{config});
}

// The floor policy `stop` is about scales that could not go lower any more. A static one never could.
TEST(GradScalerTest, OnlyADynamicScaleStopsTheRunAtItsFloor) {
  for (const ScalerMode mode : {ScalerMode::kNone, ScalerMode::kStatic, ScalerMode::kDynamic}) {
    for (const FloorPolicy policy : {FloorPolicy::kFault, FloorPolicy::kStop, FloorPolicy::kClamp}) {
      ScalerConfig config;
      config.mode = mode;
      config.init_scale = config.min_scale = 1.0f;
      config.hysteresis = 2;
      config.floor_policy = policy;
      GradScaler scaler(config);
      if (mode == ScalerMode::kDynamic) {
        EXPECT_FALSE(ends_run(run(scaler, kOverflow), config)) << "it uses hysteresis up";
      }
      EXPECT_EQ(ends_run(run(scaler, kOverflow), config), mode == ScalerMode::kDynamic && policy == FloorPolicy::kStop);
      EXPECT_FALSE(ends_run(run(scaler, kLossFault), config));
    }
  }
}

TEST(GradScalerTest, AFaultyStateIsAFaultThatLeavesTheScaleAlone) {
  GradScaler scaler(small_dynamic_config());
  run(scaler, 2, kClean);
  const GradScaler::State before = scaler.state();
  const ScalerEvent event = run(scaler, StepOutcome::kStateFault);
  EXPECT_EQ(event, ScalerEvent::kStateFault);
  EXPECT_TRUE(is_fault(event));
  EXPECT_TRUE(ends_run(event, scaler.config()));
  EXPECT_EQ(name(event), "non-finite state");
  EXPECT_EQ(scaler.state(), before);
}

}  // namespace
}  // namespace mantissa
