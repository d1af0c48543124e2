// Misuse, resume and configurations of GradScaler.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "amp/grad_scaler.h"
#include "core/base/check.h"
#include "tests/amp/scaler_steps.h"

namespace mantissa {
namespace {

using testing::run;
using testing::small_dynamic_config;

constexpr auto kClean = StepOutcome::kClean;
constexpr auto kOverflow = StepOutcome::kGradientOverflow;
constexpr auto kLossFault = StepOutcome::kLossFault;

// What ContractError says, or nothing if none is thrown.
template <typename F>
std::string misuse(F&& call) {
  try {
    call();
  } catch (const ContractError& error) {
    return error.what();
  }
  return "";
}

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
  // gradients accumulated, not unscaled
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
  // none of the refused calls has changed anything
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
  EXPECT_FALSE(scaler.load_state(GradScaler(none).state()));  // its scale is 1, and would take long to grow
  EXPECT_EQ(scaler.state(), before);
}

TEST(GradScalerStateTest, AStaticScaleIsConfiguration) {
  ScalerConfig config = small_dynamic_config();
  config.mode = ScalerMode::kStatic;
  const GradScaler saved(config);
  config.init_scale = 64.0f;
  GradScaler scaler(config);
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
    try {
      GradScaler scaler(config);
      ADD_FAILURE() << key << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
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

}  // namespace
}  // namespace mantissa
