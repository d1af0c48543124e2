// How gradients meet: values used more than once, parameters over several backward passes, dtypes.
#include <gtest/gtest.h>

#include "core/ops/activation.h"
#include "core/ops/add.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"

namespace mantissa {
namespace {

using testing::leaf;
using testing::scaled;
using testing::weighted_sum;
using Values = std::vector<float>;

class TapeGradient : public ::testing::Test {
 protected:
  TapeGradient() {
    host_.bind(parameters_);
    host_.set_weight(a_, {1, -2, 3});
    host_.set_weight(b_, {4, 5, -6});
  }
  Values gradient(const Parameter& parameter) { return host_.values(parameter.gradient); }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& a_ = parameters_.add("a.weight", {3}, {});
  Parameter& b_ = parameters_.add("b.weight", {3}, {});
};

TEST_F(TapeGradient, TheLossGradientScalesEveryGradient) {
  const auto tape = host_.tape(fp32_, TapeOptions(), 0.5f);
  tape->backward(weighted_sum(*tape, scaled(*tape, leaf(*tape, a_), 2), {1, 2, 3}));
  EXPECT_EQ(gradient(a_), (Values{1, 2, 3}));
}

TEST_F(TapeGradient, ValueUsedTwiceAddsItsGradients) {
  const auto tape = host_.tape(fp32_);
  const Var a = leaf(*tape, a_);
  tape->backward(weighted_sum(*tape, add(*tape, a, scaled(*tape, a, 4)), {1, 2, 3}));
  EXPECT_EQ(gradient(a_), (Values{5, 10, 15}));
}

TEST_F(TapeGradient, SumOfAValueWithItself) {
  const auto tape = host_.tape(fp32_);
  const Var a = leaf(*tape, a_);
  tape->backward(weighted_sum(*tape, add(*tape, a, a), {1, 2, 3}));
  EXPECT_EQ(gradient(a_), (Values{2, 4, 6}));
}

// add() hands one tensor to both inputs. Both, and the sum's other consumers, then get more: adding in place to the
// shared tensor would give a what belongs to b.
TEST_F(TapeGradient, SharedGradientOfAnAddIsNeverCorrupted) {
  const auto tape = host_.tape(fp32_);
  const Var a = leaf(*tape, a_), b = leaf(*tape, b_);
  const Var a_again = scaled(*tape, a, 2), b_again = scaled(*tape, b, 3);  // recorded first: their backward runs last
  const Var sum = add(*tape, a, b);
  tape->backward(weighted_sum(*tape, add(*tape, add(*tape, sum, a_again), b_again), {1, 2, 3}));
  EXPECT_EQ(gradient(a_), (Values{3, 6, 9}));
  EXPECT_EQ(gradient(b_), (Values{4, 8, 12}));
}

// The same with give_gradient(): an aliased tensor that is added to.
TEST_F(TapeGradient, ResidualChain) {
  const auto tape = host_.tape(fp32_);
  Var x = leaf(*tape, a_);
  for (int block = 0; block < 3; ++block) x = add(*tape, x, scaled(*tape, x, 0.5f));
  tape->backward(weighted_sum(*tape, x, {8, 16, 32}));
  EXPECT_EQ(gradient(a_), (Values{27, 54, 108})) << "1.5^3";
}

// gelu overwrites its dy when it may: not when an add has given the same tensor to somebody else.
TEST_F(TapeGradient, InPlaceBackwardSparesASharedGradient) {
  const auto tape = host_.tape(fp32_);
  const Var a = leaf(*tape, a_), b = leaf(*tape, b_);
  const Var residual = scaled(*tape, b, 1);
  const Var branch = gelu(*tape, a, GeluForm::kErf);
  tape->backward(weighted_sum(*tape, add(*tape, residual, branch), {1, 2, 3}));
  EXPECT_EQ(gradient(b_), (Values{1, 2, 3}));
  EXPECT_NE(gradient(a_), (Values{1, 2, 3}));
}

TEST_F(TapeGradient, GradientsAccumulateOverTapesUntilTheyAreForgotten) {
  const auto pass = [&](float seed) {
    const auto tape = host_.tape(fp32_, TapeOptions(), seed);
    tape->backward(weighted_sum(*tape, leaf(*tape, a_), {1, 2, 3}));
  };
  host_.backend().fill(a_.gradient, 1e9f, host_.stream());  // last step's: must be overwritten, not added to
  pass(1);
  EXPECT_EQ(gradient(a_), (Values{1, 2, 3}));
  pass(10);
  pass(100);
  EXPECT_EQ(gradient(a_), (Values{111, 222, 333}));
  parameters_.forget_gradients();
  pass(2);
  EXPECT_EQ(gradient(a_), (Values{2, 4, 6}));
}

// 1 + 2^-12 has no bf16 or fp16: the sum over micro-batches is fp32 although every contribution is 16-bit.
TEST_F(TapeGradient, AccumulationOfSixteenBitGradientsIsFp32) {
  for (const DType low : {DType::kBF16, DType::kF16}) {
    ParameterSet set;
    Parameter& weight = set.add("w.weight", {1}, {Init::Kind::kOnes});
    weight.working_dtype = low;
    host_.bind(set);
    host_.initialize(set, 1);
    for (const float seed : {1.0f, 0x1p-12f}) {
      const auto tape = host_.tape(fp32_, TapeOptions(), seed);
      tape->backward(weighted_sum(*tape, leaf(*tape, weight), {1}));
    }
    EXPECT_EQ(gradient(weight), (Values{1.0f + 0x1p-12f})) << name(low);
  }
}

// A gradient takes its value's dtype, whatever its producer computed in.
TEST_F(TapeGradient, GradientHasTheDtypeOfItsValue) {
  const auto tape = host_.tape(fp32_);
  const Var a = leaf(*tape, a_);
  const Tensor low = tape->cast(a.value, DType::kBF16);
  DType seen = DType::kF32;
  const Var cast = tape->record(Op::kGelu, low, {a}, {}, [a, &seen](Tape& t, Tensor dy) {
    seen = dy.dtype();
    t.give_gradient(a, std::move(dy));
  });
  tape->backward(weighted_sum(*tape, cast, {1, 1.0f + 0x1p-12f, 3}));
  EXPECT_EQ(seen, DType::kBF16);
  EXPECT_EQ(gradient(a_), (Values{1, 1, 3})) << "rounded to bf16 on the way";
}

TEST_F(TapeGradient, TargetOfAValueWithoutSlotIsRefused) {
  const auto tape = host_.tape(fp32_);
  EXPECT_THROW(tape->gradient_target(Var{host_.tensor({1}, {1})}), ContractError);
}

TEST_F(TapeGradient, GradientOfAnotherSizeIsRefused) {
  const auto tape = host_.tape(fp32_);
  const Var a = leaf(*tape, a_);
  EXPECT_THROW(tape->give_gradient(a, host_.tensor({1, 2}, {2})), ContractError);
}

TEST_F(TapeGradient, UnboundParameterIsNamed) {
  Parameter& unbound = parameters_.add("late.weight", {3}, {});
  const auto tape = host_.tape(fp32_);
  try {
    tape->gradient_target(unbound);
    FAIL() << "expected a ContractError";
  } catch (const ContractError& error) {
    EXPECT_NE(std::string(error.what()).find("'late.weight'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace mantissa
