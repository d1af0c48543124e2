// gelu, swiglu and add: dtypes, shapes, and whether they overwrite a gradient in place.
#include <gtest/gtest.h>

#include "core/ops/activation.h"
#include "core/ops/add.h"
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

constexpr int64_t kRows = 3, kColumns = 10;

class ActivationOp : public ::testing::Test {
 protected:
  Parameter& parameter(const char* name, DType dtype, uint64_t seed) {
    Parameter& added = parameters_.add(name, {kRows, kColumns}, {});
    added.working_dtype = dtype;
    added.weight = host_.tensor(testing::normal_values(added.numel(), seed), added.shape, dtype);
    added.gradient = host_.tensor(Values(kRows * kColumns), added.shape);
    return added;
  }
  Values gradient(const Parameter& parameter) { return host_.values(parameter.gradient); }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  UniformPrecision bf16_{testing::autocast(DType::kBF16)};
  ParameterSet parameters_;
  const Values dy_ = testing::normal_values(kRows * kColumns, 4);
};

TEST_F(ActivationOp, ComputesInWhatItIsGiven) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Var x{host_.tensor(dy_, {kRows, kColumns}, dtype)};
    EXPECT_EQ(gelu(*host_.tape(bf16_), x, GeluForm::kTanh).value.dtype(), dtype);
    EXPECT_EQ(swiglu(*host_.tape(bf16_), x).value.dtype(), dtype);
    EXPECT_EQ(relu_squared(*host_.tape(bf16_), x).value.dtype(), dtype);
  }
}

TEST_F(ActivationOp, ForcedDtypeCastsTheInputAndItsGradientBack) {
  Precision forced = testing::autocast(DType::kBF16);
  forced.forced[static_cast<size_t>(Op::kGelu)] = DType::kF32;
  const UniformPrecision policy(forced);
  Parameter& x = parameter("x", DType::kBF16, 1);
  const auto tape = host_.tape(policy);
  const Var y = gelu(*tape, leaf(*tape, x), GeluForm::kErf);
  EXPECT_EQ(y.value.dtype(), DType::kF32);
  tape->backward(weighted_sum(*tape, y, dy_));
  const Values low = gradient(x);
  EXPECT_EQ(host_.values(host_.tensor(low, {kRows, kColumns}, DType::kBF16)), low) << "bf16 numbers";

  Parameter& same = parameter("same", DType::kF32, 1);  // the same numbers without a 16-bit dtype
  host_.set_weight(same, host_.values(x.weight));
  const auto wide = host_.tape(policy);
  wide->backward(weighted_sum(*wide, gelu(*wide, leaf(*wide, same), GeluForm::kErf), dy_));
  EXPECT_EQ(host_.values(host_.tensor(gradient(same), {kRows, kColumns}, DType::kBF16)), low) << "rounded once";
}

TEST_F(ActivationOp, BackwardInPlaceEqualsOutOfPlace) {
  for (const Activation activation : {Activation::kGeluTanh, Activation::kReluSquared})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const std::string suffix = std::string(name(dtype)) + std::to_string(static_cast<int>(activation));
      Parameter& x = parameter(("x" + suffix).c_str(), dtype, 1);
      Parameter& other = parameter(("other" + suffix).c_str(), dtype, 2);
      const auto pass = [&](bool shared) {
        parameters_.forget_gradients();
        const auto tape = host_.tape(fp32_);
        const Var residual = leaf(*tape, other);
        Var y = activate(*tape, leaf(*tape, x), activation);
        if (shared) y = add(*tape, residual, y);  // both then share one gradient tensor: no overwriting
        tape->backward(weighted_sum(*tape, y, dy_));
        return gradient(x);
      };
      const Values shared = pass(true);
      EXPECT_EQ(gradient(other), host_.values(host_.tensor(dy_, other.shape, dtype))) << "not overwritten";
      EXPECT_EQ(pass(false), shared) << name(dtype);
    }
}

TEST_F(ActivationOp, SwigluNeedsAGateAndAnInput) {
  const auto tape = host_.tape(fp32_);
  EXPECT_EQ(error_of([&] {
              swiglu(*tape, Var{host_.tensor(Values(6), {2, 3})});
            }),
            "[swiglu] x must be (R, 2*F), got (2, 3)");
  EXPECT_EQ(error_of([&] { swiglu(*tape, Var{host_.tensor(Values(6), {6})}); }),
            "[swiglu] x must be (R, 2*F), got (6)");
  EXPECT_EQ(swiglu(*tape, Var{host_.tensor(Values(12), {2, 6})}).value.shape(), (Shape{2, 3}));
}

TEST_F(ActivationOp, AddRefusesOtherShapes) {
  const auto tape = host_.tape(fp32_);
  const Var a{host_.tensor(Values(6), {2, 3})}, b{host_.tensor(Values(6), {3, 2})};
  EXPECT_EQ(error_of([&] { add(*tape, a, b); }), "[add] shapes must be equal, got (2, 3) and (3, 2)");
}

TEST_F(ActivationOp, AddKeepsTheWidestInput) {
  const Var wide{host_.tensor({1}, {1})}, low{host_.tensor({0x1p-12f}, {1}, DType::kBF16)};
  const auto tape = host_.tape(bf16_);
  const Tensor sum = add(*tape, wide, low).value;
  EXPECT_EQ(sum.dtype(), DType::kF32);
  EXPECT_EQ(host_.values(sum), Values{1 + 0x1p-12f});
  EXPECT_EQ(add(*tape, low, low).value.dtype(), DType::kBF16);
}

TEST_F(ActivationOp, AddGivesEachInputItsDtype) {
  Parameter& wide = parameter("wide", DType::kF32, 1);
  Parameter& low = parameter("low", DType::kBF16, 2);
  const auto tape = host_.tape(bf16_);
  tape->backward(weighted_sum(*tape, add(*tape, leaf(*tape, wide), leaf(*tape, low)), dy_));
  EXPECT_EQ(gradient(wide), dy_);
  EXPECT_EQ(gradient(low), host_.values(host_.tensor(dy_, {kRows, kColumns}, DType::kBF16)));
}

}  // namespace
}  // namespace mantissa
