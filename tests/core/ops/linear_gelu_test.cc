// linear_gelu and the linear layer behind it: the values and gradients of the three ops that they stand for.
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
namespace {

using testing::error_of;
using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kRows = 9, kInputs = 16, kOutputs = 8;

class LinearGeluOp : public ::testing::TestWithParam<int64_t> {
 protected:
  LinearGeluOp() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }

  // Output, then gradients: of one pass, or of two that add up.
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

// A GPU's library has epilogues with gelu for the first.
INSTANTIATE_TEST_SUITE_P(Hidden, LinearGeluOp, ::testing::Values(24, 13));

// A product with gelu may leave out roundings (GemmArgs). On the way to an output there are three: of gelu's input, of
// its output and of the output; on the way to a gradient two more, of the product and of the gradient of gelu's input.
// Both ways have them: at most sqrt(2 * 5) of u = eps / 2 apart, with a factor of sqrt(3) for what the layers amplify.
TEST_P(LinearGeluOp, ValuesAndGradientsAreThoseOfThreeOps) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const UniformPrecision precision(testing::autocast(dtype));
    for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
      for (const int passes : {1, 2}) {
        const auto fused = run(precision, form, true, passes), separate = run(precision, form, false, passes);
        const bool same_kernels = !host_.is_gpu() || dtype == DType::kF32 || form == GeluForm::kErf || hidden_ % 8 != 0;
        const double bound = same_kernels ? 0.0 : std::sqrt(30.0) * limits(dtype).epsilon / 2;
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

}  // namespace
}  // namespace mantissa
