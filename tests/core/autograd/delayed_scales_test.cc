// State of delayed scaling: which tensors have it, and how it is saved. The tests of the kernel and of rounded_linear
// cover how steps update it.
#include "core/autograd/delayed_scales.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"

namespace mantissa {
namespace {

using testing::error_of;

constexpr TensorFormat kDelayedE4M3{Format::kE4M3, Scaling::kDelayed}, kDelayedE5M2{Format::kE5M2, Scaling::kDelayed};

class DelayedScalesTest : public ::testing::Test {
 protected:
  DelayedScalesTest() {
    LinearFormats& formats = policy_["a"].linear;
    formats.set(Product::kForward, Role::kActivation, kDelayedE4M3);
    formats.set(Product::kWeightGradient, Role::kActivation, kDelayedE4M3);
    formats.set(Product::kInputGradient, Role::kGradient, kDelayedE5M2);
    formats.set(Product::kWeightGradient, Role::kGradient, kDelayedE4M3);
    formats.set(Product::kForward, Role::kWeight, TensorFormat{Format::kE4M3, Scaling::kCurrent});
    policy_["b"].linear = formats;
    host_.bind(parameters_);
  }

  DelayedScales make(int32_t history) {
    return DelayedScales(parameters_, policy_, {.history = history}, host_.backend(), host_.stream());
  }
  // A step in which tensor t has amax 2^(step + t).
  void advance(DelayedScales& scales, int step) {
    std::vector<QuantizeRecord> records(static_cast<size_t>(scales.records().numel()) / sizeof(QuantizeRecord));
    for (size_t t = 0; t < records.size(); ++t) {
      records[t].amax = std::bit_cast<uint32_t>(std::ldexp(1.0f, step + static_cast<int>(t)));
    }
    const Tensor all = host_.backend().make_tensor(DType::kU8, scales.records().shape(), "test");
    host_.backend().upload(records.data(), all, host_.stream());
    scales.advance(all, {});
  }

  testing::TapeHost host_;
  testing::PrecisionByLayer policy_{testing::autocast(DType::kBF16)};
  ParameterSet parameters_;
  Parameter& a_ = parameters_.add("a.weight", {4, 4}, {});
  Parameter& a_bias_ = parameters_.add("a.bias", {4}, {});
  Parameter& b_ = parameters_.add("b.weight", {4, 4}, {});
  Parameter& c_ = parameters_.add("c.weight", {4, 4}, {});
};

TEST_F(DelayedScalesTest, TensorsAreThoseThatThePolicyScalesSo) {
  const DelayedScales scales = make(3);
  EXPECT_EQ(scales.state().names,
            (std::vector<std::string>{"a.weight/activation/e4m3", "a.weight/gradient/e5m2", "a.weight/gradient/e4m3",
                                      "b.weight/activation/e4m3", "b.weight/gradient/e5m2", "b.weight/gradient/e4m3"}));
  EXPECT_EQ(error_of([&] { scales.slot(a_, Role::kWeight, Format::kE4M3); }),
            "[delayed_scales] the policy has no delayed scaling for a.weight/weight/e4m3");
  EXPECT_EQ(error_of([&] { scales.slot(c_, Role::kActivation, Format::kE4M3); }),
            "[delayed_scales] the policy has no delayed scaling for c.weight/activation/e4m3");
}

TEST_F(DelayedScalesTest, NothingToScaleNeedsNoCalibration) {
  const UniformPrecision none;
  const DelayedScales scales(parameters_, none, {}, host_.backend(), host_.stream());
  EXPECT_TRUE(scales.empty());
  EXPECT_TRUE(scales.calibrated());
  EXPECT_EQ(scales.state(), DelayedScales::State());
}

TEST_F(DelayedScalesTest, StateGoesOnAsIfNothingHadHappened) {
  DelayedScales straight = make(3), resumed = make(3);
  for (int step = 0; step < 5; ++step) advance(straight, -step);
  resumed.load_state(straight.state());
  EXPECT_TRUE(resumed.calibrated());
  EXPECT_EQ(resumed.state(), straight.state());
  for (int step = 5; step < 12; ++step) {
    advance(straight, -step);
    advance(resumed, -step);
    EXPECT_EQ(resumed.state(), straight.state()) << step;
  }
}

// 5 amaxes 1, 1/2 … 1/16: the newest are kept. 448 / max with a history of 2 is then 448 / (1/8).
TEST_F(DelayedScalesTest, AShorterHistoryKeepsTheNewestAndALongerOneAll) {
  DelayedScales saved = make(5);
  for (int step = 0; step < 5; ++step) advance(saved, -step);
  DelayedScales shorter = make(2), longer = make(8);
  shorter.load_state(saved.state());
  longer.load_state(saved.state());
  EXPECT_EQ(shorter.state().entries, 2);
  EXPECT_EQ(shorter.state().amaxes[0], std::bit_cast<int32_t>(1.0f / 8));
  EXPECT_EQ(shorter.state().amaxes[1], std::bit_cast<int32_t>(1.0f / 16));
  EXPECT_EQ(longer.state().amaxes, saved.state().amaxes);
  advance(shorter, -5);
  advance(longer, -5);
  EXPECT_EQ(shorter.state().scales[0], 448.0f * 16);
  EXPECT_EQ(longer.state().scales[0], 448.0f);
}

// With a loss scale 2^16 times as large, gradients need scales smaller by that factor from the first step on.
TEST_F(DelayedScalesTest, AnotherLossScaleMovesGradientsAlone) {
  DelayedScales saved = make(2), loaded = make(2);
  advance(saved, 2);
  advance(saved, 3);
  const DelayedScales::State before = saved.state();
  loaded.load_state(before, 65536.0);
  const DelayedScales::State after = loaded.state();
  for (size_t tensor = 0; tensor < before.names.size(); ++tensor) {
    const bool is_gradient = before.names[tensor].find("/gradient/") != std::string::npos;
    const float ratio = is_gradient ? 65536.0f : 1.0f;
    EXPECT_EQ(after.scales[tensor], before.scales[tensor] / ratio) << before.names[tensor];
    for (size_t entry = 2 * tensor; entry < 2 * tensor + 2; ++entry) {
      EXPECT_EQ(std::bit_cast<float>(after.amaxes[entry]), std::bit_cast<float>(before.amaxes[entry]) * ratio);
    }
  }
  EXPECT_TRUE(loaded.calibrated());
}

// A scale stays a normal number; a missing amax stays missing.
TEST_F(DelayedScalesTest, AnotherLossScaleLeavesScalesNormal) {
  DelayedScales saved = make(1), loaded = make(1);
  advance(saved, -100);
  DelayedScales::State state = saved.state();
  state.amaxes[1] = 0;
  loaded.load_state(state, std::ldexp(1.0, -100));
  EXPECT_EQ(loaded.state().scales[1], std::ldexp(1.0f, 126));
  EXPECT_EQ(loaded.state().amaxes[1], 0);
}

TEST_F(DelayedScalesTest, TensorsThatTheStateDoesNotKnowAskForACalibration) {
  DelayedScales saved = make(2);
  advance(saved, 3);
  DelayedScales::State state = saved.state();
  state.names[1] = "gone.weight/gradient/e5m2";
  DelayedScales loaded = make(2);
  loaded.load_state(state);
  EXPECT_FALSE(loaded.calibrated());
  EXPECT_EQ(loaded.state().scales[0], state.scales[0]);
  EXPECT_EQ(loaded.state().scales[1], 1.0f);
  state.scales.pop_back();
  EXPECT_NE(error_of([&] { loaded.load_state(state); }), "");
}

}  // namespace
}  // namespace mantissa
