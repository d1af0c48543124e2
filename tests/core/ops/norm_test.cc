// layer_norm and rms_norm of a value or a sum: shapes, the result's dtype, gradients that add to others.
#include <gtest/gtest.h>

#include "core/ops/add.h"
#include "core/ops/norm.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace norm_test {

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
  NormedSum add_norm(Tape& tape, DeferredSum x, DType out) {
    if (GetParam() == Kind::kRmsNorm) return add_rms_norm(tape, std::move(x), weight_, kEpsilon, out);
    return add_layer_norm(tape, std::move(x), weight_, &bias_, kEpsilon, out);
  }
  Values gradient(const Parameter& parameter) { return host_.values(parameter.gradient); }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kRows, kChannels}, {Init::Kind::kNormal, 1.0f});
  Parameter& branch_ = parameters_.add("branch", {kRows, kChannels}, {Init::Kind::kNormal, 1.0f});
  Parameter& weight_ = parameters_.add("norm.weight", {kChannels}, {});
  Parameter& bias_ = parameters_.add("norm.bias", {kChannels}, {});
  const Values dy_ = testing::normal_values(kRows * kChannels, 4);
};

INSTANTIATE_TEST_SUITE_P(Kinds, NormOp, ::testing::Values(Kind::kLayerNorm, Kind::kRmsNorm),
                         [](const auto& info) { return info.param == Kind::kLayerNorm ? "LayerNorm" : "RmsNorm"; });

TEST_P(NormOp, BackwardFunctionsKeepNoWeight) {
  const auto tape = host_.tape(fp32_, {.recompute = Recompute::kSelective});
  const Var y = norm(*tape, leaf(*tape, x_), DType::kF32);
  EXPECT_NE(y.remake, nullptr);
  EXPECT_TRUE(weight_.weight.unique());
  EXPECT_TRUE(bias_.weight.unique());
}

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

// core/ops/norm.h guarantees it: rounding on store gives what a consumer's cast of the fp32 result would give.
TEST_P(NormOp, ResultInAnotherDtypeIsTheRoundedFp32Result) {
  for (const DType out : {DType::kBF16, DType::kF16}) {
    const auto tape = host_.tape(fp32_);
    const Var wide = norm(*tape, leaf(*tape, x_), DType::kF32), low = norm(*tape, leaf(*tape, x_), out);
    EXPECT_EQ(low.value.dtype(), out);
    EXPECT_EQ(host_.values(low.value), host_.values(tape->cast(wide.value, out))) << name(out);
  }
}

// The pre-norm block: the residual stream's gradient exists before the norm's arrives, and the norm adds to it.
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

// A bf16 input: fp32 statistics, a bf16 input gradient, and fp32 parameter gradients (dy is read as fp32).
TEST_P(NormOp, LowPrecisionInput) {
  set_up(DType::kBF16);
  const auto pass = [&](const Var& x, Tape& tape) {
    const Var y = norm(tape, x, DType::kF32);
    Values values = host_.values(y.value);
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

// The sum continues as the residual stream and is normalised: values and gradients have the bits of the two ops.
TEST_P(NormOp, ASumHasTheBitsOfAdditionAndNorm) {
  for (const DType branch_dtype : {DType::kF32, DType::kBF16}) {
    branch_.working_dtype = branch_dtype;
    set_up(DType::kF32);
    const UniformPrecision precision(testing::autocast(DType::kBF16));
    const auto pass = [&](bool fused) {
      parameters_.forget_gradients();
      const auto tape = host_.tape(precision);
      const Var x = leaf(*tape, x_), branch = leaf(*tape, branch_);
      NormedSum at;
      if (fused) {
        at = add_norm(*tape, defer_add(*tape, x, branch), DType::kBF16);
      } else {
        at.sum = add(*tape, x, branch);
        at.normed = norm(*tape, at.sum, DType::kBF16);
      }
      std::vector<Values> results{host_.values(at.sum.value), host_.values(at.normed.value)};
      tape->backward(weighted_sum(*tape, add(*tape, at.sum, at.normed), dy_));
      for (const Parameter* p : {&x_, &branch_, &weight_, &bias_}) results.push_back(gradient(*p));
      return results;
    };
    const auto fused = pass(true), separate = pass(false);
    EXPECT_EQ(fused, separate) << name(branch_dtype);
    for (const size_t used : {0, 1, 2, 3, 4}) EXPECT_GT(testing::norm(fused[used]), 0.0) << used;
    EXPECT_NE(fused[2], dy_) << "the norm's gradient is part of it";
  }
}

TEST_P(NormOp, ASumThatNothingElseReads) {
  const auto tape = host_.tape(fp32_);
  const NormedSum at = add_norm(*tape, defer_add(*tape, leaf(*tape, x_), leaf(*tape, branch_)), DType::kF32);
  tape->backward(weighted_sum(*tape, at.normed, dy_));
  EXPECT_GT(testing::norm(gradient(x_)), 0.0);
  EXPECT_EQ(gradient(x_), gradient(branch_));
}

// The setting of the adding layer decides, not that of the norm's layer.
TEST_P(NormOp, ASumHasTheDtypeOfItsLayersAdd) {
  branch_.working_dtype = DType::kBF16;
  set_up(DType::kF32);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    testing::PrecisionByLayer precision(testing::autocast(DType::kBF16));
    precision["block"].forced[static_cast<size_t>(Op::kAdd)] = dtype;
    const auto tape = host_.tape(precision);
    DeferredSum sum;
    {
      const Tape::LayerGuard guard(*tape, "block");
      sum = defer_add(*tape, leaf(*tape, x_), leaf(*tape, branch_));
    }
    EXPECT_EQ(sum.is_deferred(), dtype != DType::kF16) << "fp16 is the dtype of neither addend";
    const NormedSum at = add_norm(*tape, std::move(sum), DType::kBF16);
    EXPECT_EQ(at.sum.value.dtype(), dtype);
    EXPECT_EQ(at.normed.value.dtype(), DType::kBF16);
  }
}

// With fusion off, an injected fault reaches the norm, and a fault search sees each op.
TEST_P(NormOp, WhereEveryOpIsShownTheAdditionIsOne) {
  std::vector<std::string> seen;
  TapeOptions options;
  options.after_op = [&](std::string_view layer, std::string_view op, Tensor& output) {
    seen.push_back(std::string(layer) + ":" + std::string(op));
    if (op == "add") host_.backend().fill(output, 0.0f, host_.stream());
  };
  const auto tape = host_.tape(fp32_, options);
  const Var x{x_.weight}, branch{branch_.weight};
  DeferredSum sum;
  {
    const Tape::LayerGuard guard(*tape, "block");
    sum = defer_add(*tape, x, branch);
  }
  EXPECT_FALSE(sum.is_deferred());
  const Tape::LayerGuard guard(*tape, "norm");
  const NormedSum at = add_norm(*tape, std::move(sum), DType::kF32);
  const bool rms = GetParam() == Kind::kRmsNorm;
  EXPECT_EQ(seen, (std::vector<std::string>{"block:add", rms ? "norm:rms_norm" : "norm:layer_norm"}));
  EXPECT_EQ(host_.values(at.normed.value), host_.values(norm(*tape, Var{at.sum.value}, DType::kF32).value));
  EXPECT_EQ(testing::norm(host_.values(at.sum.value)), 0.0);
}

TEST_P(NormOp, AddendsMustHaveOneShape) {
  const auto tape = host_.tape(fp32_);
  const Var other{host_.tensor(Values(6), {2, 3})};
  EXPECT_EQ(error_of([&] { defer_add(*tape, leaf(*tape, x_), other); }),
            "[add] shapes must be equal, got (3, 7) and (2, 3)");
}

}  // namespace norm_test
}  // namespace mantissa
