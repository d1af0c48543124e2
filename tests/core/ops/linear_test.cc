// linear: shapes, dtypes, roundings and where its gradients go. Kernels are tested in tests/core/kernels.
#include "core/ops/linear.h"

#include <gtest/gtest.h>

#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

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
  const double tolerance = 8 * 0x1p-24;  // sums of at most 5 products: 6 roundings, and those of this reference
  EXPECT_EQ(out.value.shape(), (Shape{kRows, kOutputs}));
  EXPECT_LT(testing::relative_error(host_.values(out.value), y), tolerance);
  tape->backward(weighted_sum(*tape, out, dy));
  EXPECT_LT(testing::relative_error(gradient(x_), dx), tolerance);
  EXPECT_LT(testing::relative_error(gradient(weight_), dw), tolerance);
  EXPECT_LT(testing::relative_error(gradient(bias_), db), tolerance);
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

// 1 + 2^-8 lies half-way between two bf16 numbers and would be rounded to 1; with the bias it is 1 + 2^-7, a bf16
// number.
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

// An fp32 bias becomes bf16 as the weight does: 2^-8 + 2^-20 is 2^-8 there, and 1 + 2^-8 is rounded to 1.
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

// The gradient of an fp32 value (a residual stream) is stored in fp32 although the product is of bf16 numbers; that of
// a bf16 value in bf16. dy = (1, 1), w = (1, 2^-9): dx = 1 + 2^-9, which bf16 rounds to 1.
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

}  // namespace
}  // namespace mantissa
