// layer_norm and rms_norm: shapes, the dtype of the result, gradients that meet others.
#include <gtest/gtest.h>

#include "core/ops/add.h"
#include "core/ops/layer_norm.h"
#include "core/ops/rms_norm.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kRows = 3, kChannels = 7;
constexpr float kEpsilon = 1e-5f;

enum class Kind { kLayerNorm, kRmsNorm };

class NormOp : public ::testing::TestWithParam<Kind> {
 protected:
  NormOp() { set_up(DType::kF32); }
  void set_up(DType x_dtype) {
    x_.working_dtype = x_dtype;
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
    host_.set_weight(weight_, testing::normal_values(kChannels, 2));
    host_.set_weight(bias_, testing::normal_values(kChannels, 3));
    parameters_.forget_gradients();
  }
  Var norm(Tape& tape, const Var& x, DType out) {
    if (GetParam() == Kind::kRmsNorm) return rms_norm(tape, x, weight_, kEpsilon, out);
    return layer_norm(tape, x, weight_, &bias_, kEpsilon, out);
  }
  Values gradient(const Parameter& parameter) { return host_.values(parameter.gradient); }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kRows, kChannels}, {Init::Kind::kNormal, 1.0f});
  Parameter& weight_ = parameters_.add("norm.weight", {kChannels}, {});
  Parameter& bias_ = parameters_.add("norm.bias", {kChannels}, {});
  const Values dy_ = testing::normal_values(kRows * kChannels, 4);
};

INSTANTIATE_TEST_SUITE_P(Kinds, NormOp, ::testing::Values(Kind::kLayerNorm, Kind::kRmsNorm),
                         [](const auto& info) { return info.param == Kind::kLayerNorm ? "LayerNorm" : "RmsNorm"; });

TEST_P(NormOp, ShapeErrorsSayWhatWasExpected) {
  const auto tape = host_.tape(fp32_);
  const Var x{host_.tensor(Values(10), {2, 5})};
  EXPECT_EQ(error_of([&] { norm(*tape, x, DType::kF32); }), GetParam() == Kind::kRmsNorm
                                                                ? "[rms_norm] weight must have shape (5), got (7)"
                                                                : "[layer_norm] weight must have shape (5), got (7)");
}

TEST(LayerNormOp, BiasShapeIsChecked) {
  testing::TapeHost host;
  const UniformPrecision fp32;
  ParameterSet parameters;
  Parameter& weight = parameters.add("weight", {2}, {});
  Parameter& bias = parameters.add("bias", {3}, {});
  host.bind(parameters);
  const auto tape = host.tape(fp32);
  EXPECT_EQ(error_of([&] {
              layer_norm(*tape, Var{host.tensor({1, 2}, {1, 2})}, weight, &bias, kEpsilon, DType::kF32);
            }),
            "[layer_norm] bias must have shape (2), got (3)");
}

// The promise of layer_norm.h: rounding on store gives what a consumer's cast of the fp32 result would give.
TEST_P(NormOp, ResultInAnotherDtypeIsTheRoundedFp32Result) {
  for (const DType out : {DType::kBF16, DType::kF16}) {
    const auto tape = host_.tape(fp32_);
    const Var wide = norm(*tape, leaf(*tape, x_), DType::kF32), low = norm(*tape, leaf(*tape, x_), out);
    EXPECT_EQ(low.value.dtype(), out);
    EXPECT_EQ(host_.values(low.value), host_.values(tape->cast(wide.value, out))) << name(out);
  }
}

// The pre-norm block: the gradient of the residual stream is there when the norm's arrives, and the norm adds to it.
TEST_P(NormOp, GradientIsAddedToTheResiduals) {
  const auto pass = [&](bool residual) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(fp32_);
    const Var x = leaf(*tape, x_);
    Var y = norm(*tape, x, DType::kF32);
    if (residual) y = add(*tape, x, y);
    tape->backward(weighted_sum(*tape, y, dy_));
    return gradient(x_);
  };
  Values expected = pass(false);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += dy_[i];
  EXPECT_LT(testing::relative_error(pass(true), expected), 4 * 0x1p-24);  // one addition, in another order
}

TEST_P(NormOp, ParameterGradientsAccumulate) {
  const auto pass = [&] {
    const auto tape = host_.tape(fp32_);
    tape->backward(weighted_sum(*tape, norm(*tape, leaf(*tape, x_), DType::kF32), dy_));
  };
  pass();
  Values weight = gradient(weight_), bias = gradient(bias_);
  pass();
  for (float& value : weight) value *= 2;
  for (float& value : bias) value *= 2;
  EXPECT_EQ(gradient(weight_), weight) << "doubling is exact";
  if (GetParam() == Kind::kLayerNorm) {
    EXPECT_EQ(gradient(bias_), bias);
  }
}

TEST_P(NormOp, InputThatTakesNoGradientStillGivesThoseOfTheParameters) {
  const auto pass = [&](bool recorded) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(fp32_);
    const Var x = recorded ? leaf(*tape, x_) : Var{x_.weight};
    tape->backward(weighted_sum(*tape, norm(*tape, x, DType::kF32), dy_));
    return gradient(weight_);
  };
  const Values expected = pass(true);
  EXPECT_EQ(pass(false), expected);
  EXPECT_GT(testing::norm(expected), 0.0);
}

// A bf16 input: statistics are fp32, its gradient is bf16, the parameters' gradients fp32 (dy is taken in fp32).
TEST_P(NormOp, LowPrecisionInput) {
  set_up(DType::kBF16);
  const auto pass = [&](const Var& x, Tape& tape) {
    const Var y = norm(tape, x, DType::kF32);
    const Values values = host_.values(y.value);
    tape.backward(weighted_sum(tape, y, dy_));
    return values;
  };
  const auto low = host_.tape(fp32_);
  const Values y_low = pass(leaf(*low, x_), *low), dx_low = gradient(x_), dw_low = gradient(weight_);
  set_up(DType::kF32);
  host_.set_weight(x_,
                   host_.values(host_.tensor(host_.values(x_.weight), x_.shape, DType::kBF16)));  // the same numbers
  const auto wide = host_.tape(fp32_);
  EXPECT_EQ(pass(leaf(*wide, x_), *wide), y_low);
  EXPECT_EQ(gradient(weight_), dw_low);
  EXPECT_EQ(host_.values(host_.tensor(gradient(x_), x_.shape, DType::kBF16)), dx_low) << "rounded once";
}

}  // namespace
}  // namespace mantissa
