#include "core/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/base/check.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa {
namespace {

std::string refusal(const AdamWOptions& options) {
  try {
    validate(options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

constexpr double kNoClipping = std::numeric_limits<double>::infinity();

// The control of an applied update.
UpdateControl applied(const AdamWOptions& options, int64_t applied_steps, double unscale, double learning_rate) {
  return control_of(UpdateDecision{}, plan_update(options, applied_steps, unscale, kNoClipping, learning_rate));
}

TEST(AdamW, BiasCorrectionsOfTheFirstSteps) {
  // beta1 = 0.5 and beta2 = 0.75 are exact in binary: 1 - 0.5^t and 1 - 0.75^t have no rounding for small t.
  const AdamWOptions options{.beta1 = 0.5f, .beta2 = 0.75f};
  const UpdateControl first = applied(options, 0, 0.25, 1e-3);
  EXPECT_EQ(first.apply, 1);
  EXPECT_EQ(first.gradient_multiplier, 0.25f);
  EXPECT_EQ(first.learning_rate, 1e-3);
  EXPECT_EQ(first.bias_correction1, 0.5f);
  EXPECT_EQ(first.bias_correction2, 0.25f);
  EXPECT_EQ(first.update, 1u);
  const UpdateControl third = applied(options, 2, 1.0, 1e-3);
  EXPECT_EQ(third.bias_correction1, 0.875f);
  EXPECT_EQ(third.bias_correction2, 0.578125f);
  EXPECT_EQ(third.update, 3u);
}

TEST(AdamW, BiasCorrectionKeepsItsDigitsWhereFloatWouldLoseThem) {
  // 1 - beta2 for a rounded beta2 of 0.999: the difference is exact in double and in float, and stays a double.
  const UpdateControl first = applied({.beta2 = 0.999f}, 0, 1.0, 1.0);
  EXPECT_EQ(first.bias_correction2, 1.0 - static_cast<double>(0.999f));
  const UpdateControl late = applied({}, 1'000'000, 1.0, 1.0);
  EXPECT_EQ(late.bias_correction1, 1.0f);
  EXPECT_EQ(late.bias_correction2, 1.0f);
}

TEST(AdamW, RefusesAPlanThatIsNoNumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(plan_update({}, 0, nan, kNoClipping, 1e-3), ContractError);
  EXPECT_THROW(plan_update({}, 0, 1.0, nan, 1e-3), ContractError);
  EXPECT_THROW(plan_update({}, 0, 1.0, kNoClipping, nan), ContractError);
  EXPECT_THROW(plan_update({}, -1, 1.0, kNoClipping, 1e-3), ContractError);
}

TEST(AdamW, RefusesValuesOutOfRangeByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.beta1 = 0.0f, .beta2 = 0.0f, .weight_decay = 0.0f, .first_moment = MomentFormat::kBF16}), "");
  EXPECT_NE(refusal({.beta1 = 1.0f}).find("optimizer.beta1"), std::string::npos);
  EXPECT_NE(refusal({.beta1 = nan}).find("optimizer.beta1"), std::string::npos);
  EXPECT_NE(refusal({.beta2 = -0.1f}).find("optimizer.beta2"), std::string::npos);
  EXPECT_NE(refusal({.epsilon = 0.0f}).find("optimizer.epsilon"), std::string::npos);
  EXPECT_NE(refusal({.weight_decay = nan}).find("optimizer.weight_decay"), std::string::npos);
}

TEST(AdamW, RefusesFormatsOfTheStateThatHaveNoMeaning) {
  for (const MomentFormat first : {MomentFormat::kF32, MomentFormat::kBF16, MomentFormat::kBlockwise8Bit}) {
    for (const MomentFormat second :
         {MomentFormat::kF32, MomentFormat::kBF16Stochastic, MomentFormat::kBlockwise8Bit}) {
      for (const MasterWeights master : {MasterWeights::kF32, MasterWeights::kNoneStochastic, MasterWeights::kKahan}) {
        EXPECT_EQ(refusal({.first_moment = first, .second_moment = second, .master = master}), "");
      }
    }
  }
  const auto expect = [](const AdamWOptions& options, const char* text) {
    EXPECT_NE(refusal(options).find(text), std::string::npos) << refusal(options);
  };
  expect({.first_moment = MomentFormat::kBF16Stochastic}, "optimizer.first_moment: expected fp32, bf16 or 8bit");
  expect({.second_moment = MomentFormat::kBF16}, "optimizer.second_moment: a second moment in bf16");
  expect({.second_moment = MomentFormat::kBF16}, "never decays at beta2 = 0.999");
  EXPECT_EQ(refusal({.master = MasterWeights::kKahan, .weight_rounding = WeightRounding::kStochastic}), "");
}

}  // namespace
}  // namespace mantissa
