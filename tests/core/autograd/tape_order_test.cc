// Order of the backward pass, use counts, hooks and life cycle of a tape.
#include <gtest/gtest.h>

#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"

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

  // Notes what happens in the backward pass: the scale factor of each op as it runs, and names of ready parameters.
  TapeOptions noting() {
    TapeOptions options;
    options.gradient_ready = [this](Parameter& parameter) { events_.push_back("ready " + parameter.name); };
    return options;
  }
  // y = x, and a note when its backward runs.
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
  // The sum of three: every leaf's backward runs, the later use first.
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
  TapeOptions options;
  size_t used_when_ready = SIZE_MAX;
  options.gradient_ready = [&](Parameter&) { used_when_ready = host_.arena().used_bytes(); };
  const auto tape = host_.tape(fp32_, std::move(options));
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
  leaf(*tape, parameters_[1]);  // nobody uses the value: no gradient reaches it
  tape->backward(weighted_sum(*tape, used, {1, 1, 1}));
  EXPECT_EQ(events_, (std::vector<std::string>{"ready b.weight", "ready a.weight"}));
  EXPECT_FALSE(parameters_[1].gradient_written) << "what the reducer needs to know to send zeros";
  EXPECT_EQ(parameters_[1].pending_uses, 0);
}

TEST_F(TapeOrder, BetweenNodesRunsAfterEveryNode) {
  TapeOptions options;
  int calls = 0;
  options.between_nodes = [&] { ++calls; };
  const auto tape = host_.tape(fp32_, std::move(options));
  const Var x = scaled(*tape, scaled(*tape, leaf(*tape, parameters_[0]), 2), 3);
  const Var loss = weighted_sum(*tape, x, {1, 1, 1});
  EXPECT_EQ(calls, 0);
  tape->backward(loss);
  EXPECT_EQ(calls, 4);
}

TEST_F(TapeOrder, EvaluationRecordsNothing) {
  TapeOptions options;
  options.mode = TapeMode::kEvaluation;
  const auto tape = host_.tape(fp32_, std::move(options));
  const Var loss = weighted_sum(*tape, scaled(*tape, leaf(*tape, parameters_[0]), 2), {1, 1, 1});
  EXPECT_EQ(host_.scalar(loss.value), 6.0f);
  EXPECT_EQ(tape->size(), 0u);
  EXPECT_LT(loss.slot, 0);
  EXPECT_EQ(parameters_[0].pending_uses, 0);
  EXPECT_THROW(tape->backward(loss), ContractError);
}

TEST_F(TapeOrder, EvaluationKeepsNoActivations) {
  TapeOptions options;
  options.mode = TapeMode::kEvaluation;
  const auto tape = host_.tape(fp32_, std::move(options));
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
  try {
    tape->backward(loss);
    FAIL() << "expected a ContractError";
  } catch (const ContractError& error) {
    EXPECT_STREQ(error.what(), "[tape.backward] called twice on one tape");
  }
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

}  // namespace
}  // namespace mantissa
