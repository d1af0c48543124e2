// linear: shapes, dtypes, roundings, and where its gradients go. tests/core/kernels tests the kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "core/ops/activation.h"
#include "core/ops/linear.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace linear_test {

using testing::error_of;
using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kRows = 3, kInputs = 5, kOutputs = 4;

class LinearOp : public ::testing::Test {
 protected:
  LinearOp() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
    host_.set_weight(bias_, testing::normal_values(kOutputs, 3));
  }
  Values gradient(const Parameter& parameter) { return host_.values(parameter.gradient); }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  UniformPrecision bf16_{testing::autocast(DType::kBF16)};
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kRows, kInputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& weight_ = parameters_.add("up.weight", {kOutputs, kInputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& bias_ = parameters_.add("up.bias", {kOutputs}, {});
};

TEST_F(LinearOp, ValueAndGradientsAreThoseOfTheFormula) {
  const Values x = host_.values(x_.weight), w = host_.values(weight_.weight), b = host_.values(bias_.weight);
  const Values dy = testing::normal_values(kRows * kOutputs, 9);
  Values y(kRows * kOutputs), dx(kRows * kInputs), dw(kOutputs * kInputs), db(kOutputs);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t n = 0; n < kOutputs; ++n) {
      double sum = b[n];
      const double d = dy[r * kOutputs + n];
      db[n] += static_cast<float>(d);
      for (size_t k = 0; k < kInputs; ++k) {
        sum += static_cast<double>(x[r * kInputs + k]) * w[n * kInputs + k];
        dx[r * kInputs + k] += static_cast<float>(d * w[n * kInputs + k]);
        dw[n * kInputs + k] += static_cast<float>(d * x[r * kInputs + k]);
      }
      y[r * kOutputs + n] = static_cast<float>(sum);
    }
  }
  const auto tape = host_.tape(fp32_);
  const Var out = linear(*tape, leaf(*tape, x_), weight_, &bias_);
  const double tolerance = 8 * 0x1p-24;  // sums of at most 5 products: 6 roundings, and this reference's
  EXPECT_EQ(out.value.shape(), (Shape{kRows, kOutputs}));
  EXPECT_LT(testing::relative_error(host_.values(out.value), y), tolerance);
  tape->backward(weighted_sum(*tape, out, dy));
  EXPECT_LT(testing::relative_error(gradient(x_), dx), tolerance);
  EXPECT_LT(testing::relative_error(gradient(weight_), dw), tolerance);
  EXPECT_LT(testing::relative_error(gradient(bias_), db), tolerance);
}

// A weight may then be sharded or leave the device between the passes.
TEST_F(LinearOp, BackwardFunctionsKeepNoWeight) {
  const auto tape = host_.tape(fp32_);
  const Var hidden = linear(*tape, leaf(*tape, x_), weight_, &bias_);
  EXPECT_TRUE(weight_.weight.unique());
  EXPECT_TRUE(bias_.weight.unique());
  EXPECT_EQ(tape->size(), 2u);
}

TEST_F(LinearOp, ShapeErrorsNameTheWeight) {
  const auto tape = host_.tape(fp32_);
  const Var narrow{host_.tensor(Values(6), {2, 3})}, flat{host_.tensor(Values(5), {5})};
  EXPECT_EQ(error_of([&] { linear(*tape, narrow, weight_, nullptr); }),
            "[linear] 'up.weight' has shape (4, 5) (N, K); x must have shape (R, K), got (2, 3)");
  EXPECT_EQ(error_of([&] { linear(*tape, flat, weight_, nullptr); }),
            "[linear] 'up.weight' has shape (4, 5) (N, K); x must have shape (R, K), got (5)");
  EXPECT_EQ(error_of([&] { linear(*tape, leaf(*tape, x_), weight_, &x_); }),
            "[linear] bias of 'up.weight' must have shape (4), got (3, 5)");
}

TEST_F(LinearOp, DtypeIsThePrecisions) {
  const Var x{host_.tensor(testing::normal_values(kRows * kInputs, 2), {kRows, kInputs}, DType::kBF16)};
  EXPECT_EQ(linear(*host_.tape(bf16_), x, weight_, &bias_).value.dtype(), DType::kBF16);
  EXPECT_EQ(linear(*host_.tape(fp32_), x, weight_, &bias_).value.dtype(), DType::kF32) << "the widest: the weight";
  Precision forced = testing::autocast(DType::kBF16);
  forced.forced[static_cast<size_t>(Op::kLinear)] = DType::kF16;
  EXPECT_EQ(linear(*host_.tape(UniformPrecision(forced)), x, weight_, &bias_).value.dtype(), DType::kF16);
}

// 1 + 2^-8 lies half-way between two bf16 numbers and would round to 1. With the bias it is 1 + 2^-7, a bf16 number.
TEST_F(LinearOp, BiasIsAddedBeforeTheOnlyRounding) {
  Parameter& weight = parameters_.add("w", {1, 2}, {});
  Parameter& bias = parameters_.add("b", {1}, {});
  host_.bind(parameters_);
  host_.set_weight(weight, {1, 0x1p-8f});
  host_.set_weight(bias, {0x1p-8f});
  const Var x{host_.tensor({1, 1}, {1, 2})};
  EXPECT_EQ(host_.values(linear(*host_.tape(bf16_), x, weight, nullptr).value), Values{1});
  EXPECT_EQ(host_.values(linear(*host_.tape(bf16_), x, weight, &bias).value), Values{1 + 0x1p-7f});
}

// An fp32 bias is cast to bf16 like the weight: 2^-8 + 2^-20 becomes 2^-8, and 1 + 2^-8 rounds to 1.
TEST_F(LinearOp, BiasIsCastLikeTheWeight) {
  Parameter& weight = parameters_.add("w", {1, 1}, {});
  Parameter& bias = parameters_.add("b", {1}, {});
  host_.bind(parameters_);
  host_.set_weight(weight, {1});
  host_.set_weight(bias, {0x1p-8f + 0x1p-20f});
  const Var x{host_.tensor({1}, {1, 1})};
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    EXPECT_EQ(host_.values(linear(*host_.tape(bf16_), x, weight, &bias).value), Values{1});
  }
  EXPECT_EQ(host_.derived_weights().casts(), 2) << "the weight and the bias, once for both";
  EXPECT_EQ(host_.values(linear(*host_.tape(fp32_), x, weight, &bias).value), Values{1 + 0x1p-8f + 0x1p-20f});
}

// The gradient of an fp32 value (a residual stream) is stored in fp32 although the product multiplies bf16 numbers.
// The gradient of a bf16 value is stored in bf16. dy = (1, 1), w = (1, 2^-9): dx = 1 + 2^-9, which bf16 rounds to 1.
TEST_F(LinearOp, InputGradientHasTheInputsDtype) {
  Parameter& weight = parameters_.add("w", {2, 1}, {});
  Parameter& wide = parameters_.add("wide", {1, 1}, {});
  Parameter& low = parameters_.add("low", {1, 1}, {});
  low.working_dtype = DType::kBF16;
  host_.bind(parameters_);
  host_.set_weight(weight, {1, 0x1p-9f});
  for (Parameter* x : {&wide, &low}) {
    const auto tape = host_.tape(bf16_);
    tape->backward(weighted_sum(*tape, linear(*tape, leaf(*tape, *x), weight, nullptr), {1, 1}));
  }
  EXPECT_EQ(gradient(wide), Values{1 + 0x1p-9f});
  EXPECT_EQ(gradient(low), Values{1});
}

// Weight gradients leave the product in fp32: x = (1, 2^-9), dy = (1, 1): dw = 1 + 2^-9.
TEST_F(LinearOp, WeightGradientIsNeverRoundedToSixteenBits) {
  Parameter& weight = parameters_.add("w", {1, 1}, {Init::Kind::kOnes});
  Parameter& bias = parameters_.add("b", {1}, {});
  host_.bind(parameters_);
  const auto tape = host_.tape(bf16_);
  const Var x{host_.tensor({1, 0x1p-9f}, {2, 1})};
  tape->backward(weighted_sum(*tape, linear(*tape, x, weight, &bias), {1, 0x1p-9f}));
  EXPECT_EQ(gradient(weight), Values{1 + 0x1p-18f});
  EXPECT_EQ(gradient(bias), Values{1 + 0x1p-9f});
}

TEST_F(LinearOp, TwoUsesOfOneWeightAddUp) {
  const Values dy = testing::normal_values(kRows * kOutputs, 5);
  const auto pass = [&](int uses) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(fp32_);
    const Var x = leaf(*tape, x_);
    Var y = linear(*tape, x, weight_, &bias_);
    if (uses == 2) {
      const Var again = linear(*tape, x, weight_, &bias_);
      y = tape->record(Op::kAdd, y.value, {y, again}, {}, [y, again](Tape& t, Tensor d) {
        t.give_gradient(y, d);
        t.give_gradient(again, d);
      });
    }
    tape->backward(weighted_sum(*tape, y, dy));
  };
  pass(1);
  Values weight = gradient(weight_), bias = gradient(bias_), x = gradient(x_);
  for (Values* values : {&weight, &bias, &x}) {
    for (float& value : *values) value *= 2;
  }
  pass(2);
  EXPECT_LT(testing::relative_error(gradient(weight_), weight), 8 * 0x1p-24);
  EXPECT_LT(testing::relative_error(gradient(bias_), bias), 8 * 0x1p-24);
  EXPECT_LT(testing::relative_error(gradient(x_), x), 8 * 0x1p-24);
}

TEST_F(LinearOp, WeightIsCastOncePerVersion) {
  const Var x{host_.tensor(Values(kRows * kInputs), {kRows, kInputs})};
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) linear(*host_.tape(bf16_), x, weight_, nullptr);
  EXPECT_EQ(host_.derived_weights().casts(), 1);
  ++weight_.version;
  linear(*host_.tape(bf16_), x, weight_, nullptr);
  EXPECT_EQ(host_.derived_weights().casts(), 2);
}

// --- linear_gelu and the linear layer after it give the values and gradients of the three ops that they replace.
namespace fused_gelu {

constexpr int64_t kRows = 9, kInputs = 16, kOutputs = 8;

class LinearGeluOp : public ::testing::TestWithParam<int64_t> {
 protected:
  LinearGeluOp() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }

  // Returns the output, then the gradients of one pass or the sum of two.
  std::vector<Values> run(const PrecisionPolicy& precision, GeluForm form, bool fused, int passes = 1) {
    parameters_.forget_gradients();
    std::vector<Values> results;
    for (int pass = 0; pass < passes; ++pass) {
      const auto tape = host_.tape(precision);
      const Var x = leaf(*tape, x_);
      const Var y = fused ? linear(*tape, linear_gelu(*tape, x, up_, &up_bias_, form), down_, &down_bias_)
                          : linear(*tape, gelu(*tape, linear(*tape, x, up_, &up_bias_), form), down_, &down_bias_);
      results = {host_.values(y.value)};
      tape->backward(weighted_sum(*tape, y, testing::normal_values(kRows * kOutputs, 3)));
    }
    for (int i = 0; i < parameters_.size(); ++i) results.push_back(host_.values(parameters_[i].gradient));
    return results;
  }

  const int64_t hidden_ = GetParam();
  testing::TapeHost host_;
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kRows, kInputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& up_ = parameters_.add("up.weight", {hidden_, kInputs}, {Init::Kind::kNormal, 0.5f});
  Parameter& up_bias_ = parameters_.add("up.bias", {hidden_}, {Init::Kind::kNormal, 0.5f});
  Parameter& down_ = parameters_.add("down.weight", {kOutputs, hidden_}, {Init::Kind::kNormal, 0.5f});
  Parameter& down_bias_ = parameters_.add("down.bias", {kOutputs}, {Init::Kind::kNormal, 0.5f});
};

// A GPU's library has gelu epilogues for the first size.
INSTANTIATE_TEST_SUITE_P(Hidden, LinearGeluOp, ::testing::Values(24, 13));

// A product with gelu may omit roundings (GemmArgs). An output has three: of gelu's input, gelu's output and the
// output. A gradient has two more: of the product and of gelu's input gradient. Both ways have them: at most sqrt(2 *
// 5) of u = eps / 2 apart, times sqrt(3) for the layers' amplification.
TEST_P(LinearGeluOp, ValuesAndGradientsAreThoseOfThreeOps) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const UniformPrecision precision(testing::autocast(dtype));
    for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
      for (const int passes : {1, 2}) {
        const auto fused = run(precision, form, true, passes), separate = run(precision, form, false, passes);
        const bool same_kernels = !host_.is_gpu() || dtype == DType::kF32 || form == GeluForm::kErf || hidden_ % 8 != 0;
        const double bound = same_kernels ? 0.0 : std::sqrt(30.0) * info(format_of(dtype)).epsilon / 2;
        for (size_t i = 0; i < fused.size(); ++i) {
          EXPECT_LE(testing::relative_error(fused[i], separate[i]), bound) << name(dtype) << ", result " << i;
          EXPECT_GT(testing::norm(fused[i]), 0.0) << i;
        }
      }
    }
  }
}

TEST_P(LinearGeluOp, EvaluationGivesTheSameValues) {
  const UniformPrecision precision(testing::autocast(DType::kBF16));
  const auto value = [&](TapeMode mode) {
    const auto tape = host_.tape(precision, TapeOptions{.mode = mode});
    const Var x{host_.tensor(host_.values(x_.weight), x_.shape)};
    return host_.values(linear(*tape, linear_gelu(*tape, x, up_, nullptr, GeluForm::kTanh), down_, nullptr).value);
  };
  EXPECT_EQ(value(TapeMode::kEvaluation), value(TapeMode::kTraining));
}

TEST_P(LinearGeluOp, KeepsGelusInputInTheDtypeOfLinear) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const UniformPrecision precision(testing::autocast(dtype));
    const auto tape = host_.tape(precision);
    const GeluOutput y = linear_gelu(*tape, leaf(*tape, x_), up_, &up_bias_, GeluForm::kErf);
    EXPECT_EQ(y.input.dtype(), dtype);
    EXPECT_EQ(y.y.value.dtype(), dtype);
    EXPECT_EQ(y.y.value.shape(), (Shape{kRows, hidden_}));
  }
}

TEST_P(LinearGeluOp, TheSecondLayerMustComputeInGelusDtype) {
  testing::PrecisionByLayer precision(testing::autocast(DType::kBF16));
  precision["down"].low = DType::kF16;
  const auto tape = host_.tape(precision);
  const GeluOutput y = linear_gelu(*tape, leaf(*tape, x_), up_, nullptr, GeluForm::kTanh);
  const Tape::LayerGuard guard(*tape, "down");
  EXPECT_EQ(error_of([&] { linear(*tape, y, down_, nullptr); }),
            "[linear] 'down.weight' must compute in gelu's dtype bf16, got fp16");
}

}  // namespace fused_gelu
}  // namespace linear_test
}  // namespace mantissa
