// The dtype that an op computes in: rules, forced dtypes, scopes, layers.
#include "core/autograd/precision.h"

#include <gtest/gtest.h>

#include "core/ops/linear.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"

namespace mantissa {
namespace {

using enum DType;

// Sets the thread's scope for its lifetime.
class Scope {
 public:
  explicit Scope(AutocastState state) : saved_(autocast_state()) { autocast_state() = state; }
  ~Scope() { autocast_state() = saved_; }

 private:
  AutocastState saved_;
};

TEST(ComputeDtype, FollowsTheRule) {
  const Precision precision = testing::autocast(kBF16);
  const AutocastState none;
  // linear: low for any inputs.
  EXPECT_EQ(compute_dtype(precision, none, Op::kLinear, kF32, kF32), kBF16);
  EXPECT_EQ(compute_dtype(precision, none, Op::kLinear, kF16, kF32), kBF16);
  // cross_entropy: fp32 for any inputs.
  EXPECT_EQ(compute_dtype(precision, none, Op::kCrossEntropy, kBF16, kBF16), kF32);
  // add: the widest input; gelu: the first.
  EXPECT_EQ(compute_dtype(precision, none, Op::kAdd, kBF16, kF32), kF32);
  EXPECT_EQ(compute_dtype(precision, none, Op::kAdd, kBF16, kBF16), kBF16);
  EXPECT_EQ(compute_dtype(precision, none, Op::kGelu, kBF16, kF32), kBF16);
}

TEST(ComputeDtype, SwitchedOffMeansTheWidestInput) {
  Precision off = testing::autocast(kBF16);
  off.enabled = false;
  off.forced[static_cast<size_t>(Op::kLinear)] = kF16;
  for (int op = 0; op < kOpCount; ++op) {
    EXPECT_EQ(compute_dtype(off, {}, static_cast<Op>(op), kBF16, kF32), kF32) << name(static_cast<Op>(op));
    EXPECT_EQ(compute_dtype(off, {}, static_cast<Op>(op), kBF16, kBF16), kBF16) << name(static_cast<Op>(op));
  }
}

TEST(ComputeDtype, DtypeForcedForAnOpPrecedesItsRule) {
  Precision precision = testing::autocast(kBF16);
  precision.forced[static_cast<size_t>(Op::kLinear)] = kF32;
  precision.forced[static_cast<size_t>(Op::kGelu)] = kF16;
  EXPECT_EQ(compute_dtype(precision, {}, Op::kLinear, kBF16, kBF16), kF32);
  EXPECT_EQ(compute_dtype(precision, {}, Op::kGelu, kBF16, kBF16), kF16);
  EXPECT_EQ(compute_dtype(precision, {}, Op::kAttention, kF32, kF32), kBF16) << "others keep their rule";
}

TEST(ComputeDtype, ScopeOverridesThePolicy) {
  const Precision precision = testing::autocast(kBF16);
  EXPECT_EQ(compute_dtype(precision, {.enabled = false, .dtype = {}}, Op::kLinear, kF32, kF32), kF32);
  EXPECT_EQ(compute_dtype(precision, {.enabled = {}, .dtype = kF16}, Op::kLinear, kF32, kF32), kF16);
  EXPECT_EQ(compute_dtype(precision, {.enabled = {}, .dtype = kF16}, Op::kCrossEntropy, kF16, kF16), kF32)
      << "a scope changes what low means, not which ops are low";
  Precision off = precision;
  off.enabled = false;
  EXPECT_EQ(compute_dtype(off, {.enabled = true, .dtype = {}}, Op::kLinear, kF32, kF32), kBF16);
}

TEST(OpNames, RoundTrip) {
  for (int op = 0; op < kOpCount; ++op) {
    const auto parsed = parse_op(name(static_cast<Op>(op)));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(static_cast<int>(*parsed), op);
    EXPECT_FALSE(name(static_cast<Op>(op)).empty());
  }
  EXPECT_FALSE(parse_op("").has_value());
  EXPECT_FALSE(parse_op("Linear").has_value());
  EXPECT_FALSE(parse_op("convolution").has_value());
}

class TapePrecision : public ::testing::Test {
 protected:
  TapePrecision() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }
  DType linear_dtype(Tape& tape) { return tape.compute_dtype(Op::kLinear, kF32, kF32); }

  testing::TapeHost host_;
  ParameterSet parameters_;
  Parameter& weight_ = parameters_.add("w.weight", {4, 3}, {Init::Kind::kNormal, 1.0f});
};

TEST_F(TapePrecision, LayerGuardsBuildThePath) {
  const UniformPrecision policy;
  const auto tape = host_.tape(policy);
  EXPECT_EQ(tape->layer(), "");
  {
    const Tape::LayerGuard blocks(*tape, "blocks.3");
    EXPECT_EQ(tape->layer(), "blocks.3");
    {
      const Tape::LayerGuard mlp(*tape, "mlp");
      EXPECT_EQ(tape->layer(), "blocks.3.mlp");
    }
    EXPECT_EQ(tape->layer(), "blocks.3");
  }
  EXPECT_EQ(tape->layer(), "");
}

TEST_F(TapePrecision, EachLayerHasItsOwn) {
  testing::PrecisionByLayer policy(testing::autocast(kBF16));
  policy["blocks.1"].low = kF16;
  policy["blocks.1.mlp"].enabled = false;
  policy[""].low = kF16;
  const auto tape = host_.tape(policy);
  EXPECT_EQ(linear_dtype(*tape), kF16) << "also before the first guard";
  {
    const Tape::LayerGuard guard(*tape, "blocks.0");
    EXPECT_EQ(linear_dtype(*tape), kBF16);
  }
  {
    const Tape::LayerGuard guard(*tape, "blocks.1");
    EXPECT_EQ(linear_dtype(*tape), kF16);
    {
      const Tape::LayerGuard mlp(*tape, "mlp");
      EXPECT_EQ(linear_dtype(*tape), kF32);
    }
    EXPECT_EQ(linear_dtype(*tape), kF16) << "restored on leaving";
  }
  EXPECT_EQ(linear_dtype(*tape), kF16);
}

TEST_F(TapePrecision, ScopesApplyToOpsAndNest) {
  const UniformPrecision policy(testing::autocast(kBF16));
  const auto tape = host_.tape(policy);
  const Var x{host_.tensor({1, 2, 3}, {1, 3})};
  const auto output = [&] { return linear(*tape, x, weight_, nullptr).value.dtype(); };
  EXPECT_EQ(output(), kBF16);
  {
    const Scope off({.enabled = false, .dtype = {}});
    EXPECT_EQ(output(), kF32);
    const Scope on({.enabled = true, .dtype = kF16});
    EXPECT_EQ(output(), kF16);
  }
  EXPECT_EQ(output(), kBF16);
}

// The forward pass decides what its backward pass computes in.
TEST_F(TapePrecision, BackwardIsNotAffectedByTheScopeItRunsIn) {
  const UniformPrecision policy(testing::autocast(kBF16));
  const auto gradient = [&](AutocastState during_backward) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(policy);
    const Var y = linear(*tape, Var{host_.tensor({0.3f, -1.7f, 0.9f}, {1, 3})}, weight_, nullptr);
    const Var loss = testing::weighted_sum(*tape, y, {1, 2, 3, 4});
    const Scope scope(during_backward);
    tape->backward(loss);
    return host_.values(weight_.gradient);
  };
  const auto plain = gradient({});
  EXPECT_EQ(gradient({.enabled = false, .dtype = {}}), plain);
  EXPECT_EQ(gradient({.enabled = {}, .dtype = kF16}), plain);
}

}  // namespace
}  // namespace mantissa
