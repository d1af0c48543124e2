// Order of the backward pass, use counts, hooks and the life cycle of a tape.
#include <gtest/gtest.h>

#include "core/ops/activation.h"
#include "core/ops/add.h"
#include "core/ops/linear.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::leaf;
using testing::scaled;
using testing::weighted_sum;

class TapeOrder : public ::testing::Test {
 protected:
  TapeOrder() {
    for (const char* name : {"a.weight", "b.weight", "c.weight"}) parameters_.add(name, {3}, {Init::Kind::kOnes});
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }

  // Records the backward pass: the scale factor of each op as it runs, and the names of ready parameters.
  TapeOptions noting() {
    return {.gradient_ready = [this](Parameter& parameter) { events_.push_back("ready " + parameter.name); }};
  }
  // y = x; records when its backward runs.
  Var noted(Tape& tape, const Var& x, const std::string& name) {
    Tensor y = tape.allocate(x.value.dtype(), x.value.shape());
    tape.backend().copy(x.value, y, tape.stream());
    const Var source{{}, x.slot};
    return tape.record(Op::kGelu, y, {source}, {}, [this, source, name](Tape& t, Tensor dy) {
      events_.push_back(name);
      t.give_gradient(source, std::move(dy));
    });
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  std::vector<std::string> events_;
};

TEST_F(TapeOrder, BackwardRunsInReverseOrderOfExecution) {
  const auto tape = host_.tape(fp32_, noting());
  Var x = leaf(*tape, parameters_[0]);
  for (const char* name : {"first", "second", "third"}) x = noted(*tape, x, name);
  EXPECT_EQ(tape->size(), 4u);
  tape->backward(weighted_sum(*tape, x, {1, 1, 1}));
  EXPECT_EQ(events_, (std::vector<std::string>{"third", "second", "first", "ready a.weight"}));
  EXPECT_EQ(tape->size(), 0u);
}

TEST_F(TapeOrder, TiedParameterIsReadyOnceAfterTheBackwardOfItsFirstUse) {
  const auto tape = host_.tape(fp32_, noting());
  Var x = leaf(*tape, parameters_[0]);
  x = noted(*tape, x, "between");
  const Var again = leaf(*tape, parameters_[0]);
  EXPECT_EQ(parameters_[0].pending_uses, 2);
  const Var other = leaf(*tape, parameters_[1]);
  // The sum of three leaves. Every leaf's backward runs, the latest use first.
  Tensor y = tape->allocate(DType::kF32, {3});
  host_.backend().copy(x.value, y, host_.stream());
  const Var sum = tape->record(Op::kAdd, y, {x, again, other}, {}, [x, again, other](Tape& t, Tensor dy) {
    for (const Var& input : {x, again, other}) t.give_gradient(input, dy);
  });
  tape->backward(weighted_sum(*tape, sum, {1, 2, 3}));
  EXPECT_EQ(events_, (std::vector<std::string>{"ready b.weight", "between", "ready a.weight"}));
  EXPECT_EQ(parameters_[0].pending_uses, 0);
  EXPECT_EQ(host_.values(parameters_[0].gradient), (std::vector<float>{2, 4, 6})) << "the two uses add up";
  EXPECT_EQ(host_.values(parameters_[1].gradient), (std::vector<float>{1, 2, 3}));
}

TEST_F(TapeOrder, ReadyComesWhenTheOpsActivationsAreFree) {
  constexpr size_t kActivationBytes = size_t{1} << 20;
  size_t used_when_ready = SIZE_MAX;
  const auto tape =
      host_.tape(fp32_, {.gradient_ready = [&](Parameter&) { used_when_ready = host_.arena().used_bytes(); }});
  const Tensor y = tape->allocate(DType::kF32, {3});
  host_.backend().copy(parameters_[0].weight, y, host_.stream());
  Tensor saved = tape->allocate(DType::kU8, {static_cast<int64_t>(kActivationBytes)});
  const Var x = tape->record(Op::kLinear, y, {}, {&parameters_[0]}, [saved](Tape&, Tensor) {});
  saved = Tensor();
  const Var loss = weighted_sum(*tape, x, {1, 1, 1});
  EXPECT_GT(host_.arena().used_bytes(), kActivationBytes);
  tape->backward(loss);
  EXPECT_LT(used_when_ready, kActivationBytes);
}

TEST_F(TapeOrder, ParameterOfAnUnusedValueIsStillReadyAndKeepsNoUse) {
  const auto tape = host_.tape(fp32_, noting());
  const Var used = leaf(*tape, parameters_[0]);
  leaf(*tape, parameters_[1]);  // the value is not used: no gradient reaches it
  tape->backward(weighted_sum(*tape, used, {1, 1, 1}));
  EXPECT_EQ(events_, (std::vector<std::string>{"ready b.weight", "ready a.weight"}));
  EXPECT_FALSE(parameters_[1].gradient_written) << "what the reducer needs to know to send zeros";
  EXPECT_EQ(parameters_[1].pending_uses, 0);
}

TEST_F(TapeOrder, BetweenNodesRunsAfterEveryNode) {
  int calls = 0;
  const auto tape = host_.tape(fp32_, {.between_nodes = [&] { ++calls; }});
  const Var x = scaled(*tape, scaled(*tape, leaf(*tape, parameters_[0]), 2), 3);
  const Var loss = weighted_sum(*tape, x, {1, 1, 1});
  EXPECT_EQ(calls, 0);
  tape->backward(loss);
  EXPECT_EQ(calls, 4);
}

TEST_F(TapeOrder, EvaluationRecordsNothing) {
  const auto tape = host_.tape(fp32_, {.mode = TapeMode::kEvaluation});
  const Var loss = weighted_sum(*tape, scaled(*tape, leaf(*tape, parameters_[0]), 2), {1, 1, 1});
  EXPECT_EQ(host_.scalar(loss.value), 6.0f);
  EXPECT_EQ(tape->size(), 0u);
  EXPECT_LT(loss.slot, 0);
  EXPECT_EQ(parameters_[0].pending_uses, 0);
  EXPECT_THROW(tape->backward(loss), ContractError);
}

TEST_F(TapeOrder, EvaluationKeepsNoActivations) {
  const auto tape = host_.tape(fp32_, {.mode = TapeMode::kEvaluation});
  Var x = leaf(*tape, parameters_[0]);
  const size_t one = host_.arena().used_bytes();
  for (int i = 0; i < 10; ++i) x = scaled(*tape, x, 1.0f);
  EXPECT_EQ(host_.arena().used_bytes(), one);
}

TEST_F(TapeOrder, ValuesWithoutParametersAreNotRecorded) {
  const auto tape = host_.tape(fp32_);
  const Var input{host_.tensor({1, 2, 3}, {3})};
  EXPECT_LT(scaled(*tape, input, 2).slot, 0);
  EXPECT_EQ(tape->size(), 0u);
}

TEST_F(TapeOrder, SecondBackwardIsRefused) {
  const auto tape = host_.tape(fp32_);
  const Var loss = weighted_sum(*tape, leaf(*tape, parameters_[0]), {1, 1, 1});
  tape->backward(loss);
  EXPECT_EQ(testing::error_of<ContractError>([&] { tape->backward(loss); }),
            "[tape.backward] called twice on one tape");
}

TEST_F(TapeOrder, BackwardNeedsARecordedLossOfOneElement) {
  const auto tape = host_.tape(fp32_);
  const Var x = leaf(*tape, parameters_[0]);
  EXPECT_THROW(tape->backward(x), ContractError);
  EXPECT_THROW(tape->backward(Var{host_.tensor({1}, {1})}), ContractError);
}

TEST_F(TapeOrder, AbandonedTapeRestoresUseCountsAndMemory) {
  {
    const auto tape = host_.tape(fp32_);
    const Var x = leaf(*tape, parameters_[0]);
    scaled(*tape, leaf(*tape, parameters_[0]), 2);
    EXPECT_EQ(parameters_[0].pending_uses, 2);
    EXPECT_GT(host_.arena().used_bytes(), 0u);
  }
  EXPECT_EQ(parameters_[0].pending_uses, 0);
  EXPECT_EQ(host_.arena().used_bytes(), 0u);
  EXPECT_NO_THROW(host_.arena().rewind());
}

TEST_F(TapeOrder, BackwardThatThrowsLeavesNoUseBehind) {
  {
    const auto tape = host_.tape(fp32_);
    Tensor y = tape->allocate(DType::kF32, {3});
    host_.backend().copy(parameters_[0].weight, y, host_.stream());
    const auto fails = [](Tape&, Tensor) { throw ContractError("out of memory, say"); };
    const Var x = tape->record(Op::kLinear, y, {}, {&parameters_[0], &parameters_[1]}, fails);
    EXPECT_THROW(tape->backward(weighted_sum(*tape, x, {1, 1, 1})), ContractError);
  }
  EXPECT_EQ(parameters_[0].pending_uses, 0);
  EXPECT_EQ(parameters_[1].pending_uses, 0);
}

// --- Sums of gradients: values used more than once, parameters over several backward passes, dtypes.

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

// add() gives one tensor to both inputs. Both, and the sum's other consumers, then receive more. Adding in place to the
// shared tensor would give b's gradient to a.
TEST_F(TapeGradient, SharedGradientOfAnAddIsNeverCorrupted) {
  const auto tape = host_.tape(fp32_);
  const Var a = leaf(*tape, a_), b = leaf(*tape, b_);
  const Var a_again = scaled(*tape, a, 2), b_again = scaled(*tape, b, 3);  // recorded first: their backward runs last
  const Var sum = add(*tape, a, b);
  tape->backward(weighted_sum(*tape, add(*tape, add(*tape, sum, a_again), b_again), {1, 2, 3}));
  EXPECT_EQ(gradient(a_), (Values{3, 6, 9}));
  EXPECT_EQ(gradient(b_), (Values{4, 8, 12}));
}

// The same with give_gradient(), which adds to an aliased tensor.
TEST_F(TapeGradient, ResidualChain) {
  const auto tape = host_.tape(fp32_);
  Var x = leaf(*tape, a_);
  for (int block = 0; block < 3; ++block) x = add(*tape, x, scaled(*tape, x, 0.5f));
  tape->backward(weighted_sum(*tape, x, {8, 16, 32}));
  EXPECT_EQ(gradient(a_), (Values{27, 54, 108})) << "1.5^3";
}

// gelu may overwrite its dy, but not if add has given the same tensor to another input.
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
  host_.backend().fill(a_.gradient, 1e9f, host_.stream());  // the last step's, to be overwritten and not added to
  pass(1);
  EXPECT_EQ(gradient(a_), (Values{1, 2, 3}));
  pass(10);
  pass(100);
  EXPECT_EQ(gradient(a_), (Values{111, 222, 333}));
  parameters_.forget_gradients();
  pass(2);
  EXPECT_EQ(gradient(a_), (Values{2, 4, 6}));
}

// 1 + 2^-12 is no bf16 or fp16 number: the sum over micro-batches is fp32 although every contribution is 16-bit.
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

// A gradient has its value's dtype, whatever its producer computed in.
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
  const std::string error = testing::error_of<ContractError>([&] { tape->gradient_target(unbound); });
  EXPECT_NE(error.find("'late.weight'"), std::string::npos) << error;
}

// --- Memory of a step: the backward pass frees activations, and every step has the same addresses.

constexpr int64_t kElements = 4096;
constexpr size_t kBlockBytes = kElements * sizeof(float);
constexpr int kDepth = 20;

class TapeMemory : public ::testing::Test {
 protected:
  TapeMemory() {
    host_.bind(parameters_);
    host_.set_weight(weight_, testing::normal_values(kElements, 1));
  }
  // A chain of kDepth ops; each keeps its input for the backward pass.
  Var chain(Tape& tape) {
    Var x = leaf(tape, weight_);
    for (int i = 0; i < kDepth; ++i) x = scaled(tape, x, 1.01f);
    return weighted_sum(tape, x, std::vector<float>(kElements, 1.0f));
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& weight_ = parameters_.add("w.weight", {kElements}, {});
};

TEST_F(TapeMemory, BackwardFreesActivationsAsItGoes) {
  std::vector<size_t> used;
  const auto tape = host_.tape(fp32_, {.between_nodes = [&] { used.push_back(host_.arena().used_bytes()); }});
  const Var loss = chain(*tape);
  const size_t forward = host_.arena().used_bytes();
  EXPECT_GE(forward, kDepth * kBlockBytes);
  tape->backward(loss);
  ASSERT_EQ(used.size(), kDepth + 2u);
  // After the loss there is one more gradient, and its input is no longer needed. Each node then frees one activation
  // and replaces its output's gradient by its input's.
  for (size_t node = 1; node + 1 < used.size(); ++node) EXPECT_EQ(used[node], used[node - 1] - kBlockBytes) << node;
  EXPECT_LE(used.back(), Arena::kAlignmentBytes) << "only the loss is left";
}

TEST_F(TapeMemory, PeakIsFarBelowTheSumOfActivationsAndGradients) {
  const auto tape = host_.tape(fp32_);
  tape->backward(chain(*tape));
  // kDepth activations and a few blocks for the last output and the gradients in flight. Keeping gradients would double
  // it.
  EXPECT_LE(host_.arena().peak_bytes(), (kDepth + 4) * kBlockBytes);
}

TEST_F(TapeMemory, EveryStepHasTheSameAddresses) {
  ParameterSet parameters;
  Parameter& table = parameters.add("table.weight", {5, 8}, {Init::Kind::kNormal, 1.0f});
  Parameter& up = parameters.add("up.weight", {16, 8}, {Init::Kind::kNormal, 1.0f});
  Parameter& down = parameters.add("down.weight", {8, 16}, {Init::Kind::kNormal, 1.0f});
  host_.bind(parameters);
  host_.initialize(parameters, 3);
  const auto step = [&] {
    std::vector<std::byte*> addresses;
    const auto note = [&](std::string_view, std::string_view, Tensor& output) { addresses.push_back(output.raw()); };
    const auto tape = host_.tape(fp32_, {.after_op = note});
    const auto spy = [&](const Var& x) {  // records the address of the gradient of x
      return tape->record(Op::kAdd, x.value, {x}, {}, [&addresses, slot = x.slot](Tape& t, Tensor dy) {
        addresses.push_back(dy.raw());
        t.give_gradient(Var{{}, slot}, std::move(dy));
      });
    };
    Var x = leaf(*tape, table);
    for (int block = 0; block < 3; ++block) {
      Var hidden = gelu(*tape, linear(*tape, x, up, nullptr), GeluForm::kTanh);
      x = spy(add(*tape, x, linear(*tape, std::move(hidden), down, nullptr)));
    }
    tape->backward(weighted_sum(*tape, x, std::vector<float>(40, 1.0f)));
    return addresses;
  };
  const auto first = step();
  host_.arena().rewind();
  EXPECT_GT(first.size(), 15u);
  EXPECT_EQ(step(), first);
  EXPECT_EQ(step(), first);
}

}  // namespace
}  // namespace mantissa
