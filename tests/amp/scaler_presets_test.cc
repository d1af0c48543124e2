// The presets against straight-line transcriptions of the rules of the three systems, with the variables those systems
// keep, compared after every step of long random overflow sequences.
#include "amp/grad_scaler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/tensor/philox.h"
#include "tests/amp/scaler_steps.h"

namespace mantissa {
namespace {

// torch.amp.GradScaler.update with _amp_update_scale_: the float scale times the double factor.
struct PyTorchScaler {
  static constexpr auto kPreset = "pytorch";
  float scale = 65536.0f;
  int growth_interval = 2000;
  int growth_tracker = 0;

  void configure(int interval, int) { growth_interval = interval; }
  bool update(bool found_inf) {
    if (found_inf) {
      scale = static_cast<float>(scale * 0.5);
      growth_tracker = 0;
    } else if (growth_tracker + 1 == growth_interval) {
      const auto grown = static_cast<float>(scale * 2.0);
      if (std::isfinite(grown)) scale = grown;
      growth_tracker = 0;
    } else {
      growth_tracker += 1;
    }
    return true;
  }
  GradScaler::State state() const { return {ScalerMode::kDynamic, scale, growth_tracker, 1}; }
};

// megatron.core DynamicGradScaler.update. Its hysteresis tracker sinks below 1 during a run of overflows; all such
// values mean that the next overflow backs off.
struct MegatronScaler {
  static constexpr auto kPreset = "megatron";
  float scale = 4294967296.0f;
  int growth_interval = 1000, hysteresis = 2;
  int growth_tracker = 0, hysteresis_tracker = 2;

  void configure(int interval, int overflows) {
    growth_interval = interval;
    hysteresis = hysteresis_tracker = overflows;
  }
  bool update(bool found_inf) {
    if (found_inf) {
      growth_tracker = 0;
      hysteresis_tracker -= 1;
      if (hysteresis_tracker <= 0) scale = std::max(scale * 0.5f, 1.0f);
    } else {
      growth_tracker += 1;
      if (growth_tracker == growth_interval) {
        growth_tracker = 0;
        hysteresis_tracker = hysteresis;
        scale = scale * 2.0f;
      }
    }
    return true;
  }
  GradScaler::State state() const {
    return {ScalerMode::kDynamic, scale, growth_tracker, std::max(hysteresis_tracker, 1)};
  }
};

// DeepSpeed's DynamicLossScaler.update_scale, before 0.17.1 and since (growth one step later); the scale is a Python
// float. False where it raises.
template <bool kDelaysGrowth>
struct DeepSpeedScaler {
  static constexpr auto kPreset = kDelaysGrowth ? "deepspeed" : "deepspeed_0.17.0";
  double cur_scale = 65536.0;
  int64_t cur_iter = 0, last_overflow_iter = -1, scale_window = 1000;
  int delayed_shift = 2, cur_hysteresis = 2;
  bool consecutive_hysteresis = false;

  void configure(int interval, int overflows) {
    scale_window = interval;
    delayed_shift = cur_hysteresis = overflows;
  }
  bool update(bool overflow) {
    if (overflow) {
      if (delayed_shift == 1 || cur_hysteresis == 1) {
        if (cur_scale == 1.0) return false;
        cur_scale = std::max(cur_scale / 2.0, 1.0);
      } else {
        cur_hysteresis -= 1;
      }
      last_overflow_iter = cur_iter;
    } else {
      if (consecutive_hysteresis) cur_hysteresis = delayed_shift;
      bool grows;
      if constexpr (kDelaysGrowth) {
        const int64_t stable_interval = cur_iter - last_overflow_iter - 1;
        grows = stable_interval > 0 && stable_interval % scale_window == 0;
      } else {
        grows = (cur_iter - last_overflow_iter) % scale_window == 0;
      }
      if (grows) {
        if (!consecutive_hysteresis) cur_hysteresis = delayed_shift;
        cur_scale *= 2.0;
      }
    }
    cur_iter += 1;
    return true;
  }
  // DeepSpeed does not count clean steps. The growth counter follows from the step of the last overflow.
  GradScaler::State state() const {
    const int64_t clean = cur_iter - last_overflow_iter - 1;
    const int64_t counted = kDelaysGrowth ? clean - 1 : clean;
    return {ScalerMode::kDynamic, static_cast<float>(cur_scale), counted < 0 ? counted : counted % scale_window,
            cur_hysteresis};
  }
};

ScalerEvent run(GradScaler& scaler, bool overflow) {
  return testing::run(scaler, overflow ? StepOutcome::kGradientOverflow : StepOutcome::kClean);
}

// Whether step `index` overflows: at random, and in bursts of 60 and more steps that drive the scale to a floor of 1.
// As with real gradients, a scale above 2^40 always overflows and one below 2^-100 never does. The scale thus stays in
// the range that all representations share.
bool overflows(uint32_t sequence, uint32_t index, double rate, float scale) {
  if (scale > 0x1p40f || scale < 0x1p-100f) return scale > 1.0f;
  const float chance = uniform01(philox(2024, {index, sequence, 0, 0})[0]);
  const float burst = uniform01(philox(2024, {index / 60, sequence, 1, 0})[0]);
  return burst < 0.02f || chance < rate;
}

template <typename Reference>
class ScalerPresetTest : public ::testing::Test {
 protected:
  // Compares for `steps` steps. Restarts both when the reference raises, which must end the run here, and at once.
  static void compare(const Reference& initial, const ScalerConfig& config, uint32_t sequence, double rate, int steps) {
    Reference reference = initial;
    GradScaler scaler(config);
    ASSERT_EQ(scaler.state(), reference.state());
    for (int i = 0; i < steps; ++i) {
      const bool overflow = overflows(sequence, static_cast<uint32_t>(i), rate, scaler.current_scale());
      const float before = scaler.current_scale();
      const bool goes_on = reference.update(overflow);
      const ScalerEvent event = run(scaler, overflow);
      ASSERT_EQ(is_fault(event), !goes_on) << "step " << i;
      ASSERT_EQ(ends_run(event, config), !goes_on) << "step " << i;
      if (!goes_on) {
        reference = initial;
        scaler = GradScaler(config);
        continue;
      }
      const GradScaler::State expected = reference.state(), got = scaler.state();
      ASSERT_EQ(got.scale, expected.scale) << "step " << i;
      ASSERT_EQ(got.clean_steps, expected.clean_steps) << "step " << i;
      ASSERT_EQ(got.hysteresis_left, expected.hysteresis_left) << "step " << i;
      ASSERT_EQ(event == ScalerEvent::kGrew, got.scale > before) << "step " << i;
      ASSERT_EQ(event == ScalerEvent::kBackedOff, got.scale < before) << "step " << i;
    }
  }
};
using References = ::testing::Types<PyTorchScaler, MegatronScaler, DeepSpeedScaler<true>, DeepSpeedScaler<false>>;
TYPED_TEST_SUITE(ScalerPresetTest, References);

TYPED_TEST(ScalerPresetTest, FollowsTheReferenceWithItsDefaults) {
  uint32_t sequence = 0;
  for (const double rate : {0.0, 1e-4, 1e-3, 0.05}) {
    this->compare(TypeParam{}, scaler_preset(TypeParam::kPreset), sequence++, rate, 100'000);
  }
}

// Short intervals and long hysteresis give far more transitions in the same number of steps.
TYPED_TEST(ScalerPresetTest, FollowsTheReferenceWithOtherIntervals) {
  uint32_t sequence = 100;
  for (const int interval : {1, 2, 3, 7, 20}) {
    for (const int hysteresis : {1, 2, 3, 5}) {
      TypeParam reference;
      reference.configure(interval, hysteresis);
      ScalerConfig config = scaler_preset(TypeParam::kPreset);
      config.growth_interval = interval;
      if (config.hysteresis > 1) config.hysteresis = hysteresis;  // PyTorch has none
      for (const double rate : {0.01, 0.1, 0.5}) this->compare(reference, config, sequence++, rate, 5'000);
    }
  }
}

TEST(ScalerPresetsTest, ConsecutiveHysteresisIsTheRefillOnCleanSteps) {
  DeepSpeedScaler<true> reference;
  reference.configure(5, 3);
  reference.consecutive_hysteresis = true;
  ScalerConfig config = scaler_preset("deepspeed_consecutive");
  config.growth_interval = 5;
  config.hysteresis = 3;
  GradScaler scaler(config);
  int back_offs = 0;
  for (uint32_t i = 0; i < 20'000; ++i) {
    const bool overflow = overflows(7, i, 0.3, scaler.current_scale());
    if (!reference.update(overflow)) break;
    back_offs += run(scaler, overflow) == ScalerEvent::kBackedOff ? 1 : 0;
    ASSERT_EQ(scaler.state(), reference.state()) << "step " << i;
  }
  EXPECT_GT(back_offs, 20);
}

// PyTorch has no floor: the scale sinks through the subnormal numbers to 0 and stays there.
TEST(ScalerPresetsTest, PyTorchSinksToZeroWithTheReference) {
  PyTorchScaler reference;
  GradScaler scaler(scaler_preset("pytorch"));
  for (int i = 0; i < 200; ++i) {
    reference.update(true);
    EXPECT_FALSE(is_fault(run(scaler, true)));
    ASSERT_EQ(scaler.state(), reference.state()) << "step " << i;
  }
  EXPECT_EQ(scaler.current_scale(), 0.0f);
}

// No preset grows to infinity; PyTorch's own rule prevents it.
TEST(ScalerPresetsTest, NoPresetGrowsToInfinity) {
  for (const std::string_view name : scaler_preset_names()) {
    ScalerConfig config = scaler_preset(name);
    config.growth_interval = 1;
    config.growth_delay = 0;
    GradScaler scaler(config);
    for (int i = 0; i < 200; ++i) run(scaler, false);
    EXPECT_EQ(scaler.current_scale(), 0x1p127f) << name;
  }
}

// Worked by hand from the rules, with the real defaults.
TEST(ScalerPresetsTest, HandWorkedTransitions) {
  GradScaler pytorch(scaler_preset("pytorch"));
  EXPECT_EQ(run(pytorch, true), ScalerEvent::kBackedOff);
  EXPECT_EQ(pytorch.current_scale(), 32768.0f);
  for (int i = 0; i < 1999; ++i) EXPECT_EQ(run(pytorch, false), ScalerEvent::kUnchanged);
  EXPECT_EQ(run(pytorch, false), ScalerEvent::kGrew);

  GradScaler megatron(scaler_preset("megatron"));
  EXPECT_EQ(run(megatron, true), ScalerEvent::kHysteresisConsumed);
  run(megatron, false);
  EXPECT_EQ(run(megatron, true), ScalerEvent::kBackedOff);
  EXPECT_EQ(megatron.current_scale(), 0x1p31f);
  for (int i = 0; i < 31; ++i) EXPECT_EQ(run(megatron, true), ScalerEvent::kBackedOff);
  EXPECT_EQ(megatron.current_scale(), 1.0f);
  EXPECT_EQ(run(megatron, true), ScalerEvent::kHeldAtFloor);

  GradScaler deepspeed(scaler_preset("deepspeed"));
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(run(deepspeed, false), ScalerEvent::kUnchanged);
  EXPECT_EQ(run(deepspeed, false), ScalerEvent::kGrew);  // the 1001st step first, then every 1000
  for (int i = 0; i < 999; ++i) EXPECT_EQ(run(deepspeed, false), ScalerEvent::kUnchanged);
  EXPECT_EQ(run(deepspeed, false), ScalerEvent::kGrew);
  EXPECT_EQ(deepspeed.current_scale(), 0x1p18f);
  EXPECT_EQ(run(deepspeed, true), ScalerEvent::kHysteresisConsumed);
  for (int i = 0; i < 18; ++i) EXPECT_EQ(run(deepspeed, true), ScalerEvent::kBackedOff);
  EXPECT_EQ(run(deepspeed, true), ScalerEvent::kAtFloorFault);

  GradScaler older(scaler_preset("deepspeed_0.17.0"));
  for (int i = 0; i < 999; ++i) EXPECT_EQ(run(older, false), ScalerEvent::kUnchanged);
  EXPECT_EQ(run(older, false), ScalerEvent::kGrew);
}

TEST(ScalerPresetsTest, AnUnknownNameIsRefusedWithTheList) {
  try {
    scaler_preset("apex");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "[scaler_preset] expected one of pytorch, megatron, deepspeed, deepspeed_consecutive, "
                 "deepspeed_0.17.0, got 'apex'");
  }
}

}  // namespace
}  // namespace mantissa
