// Memory of a step: activations go as the backward pass passes them, and every step has the same addresses.
#include <gtest/gtest.h>

#include "core/ops/activation.h"
#include "core/ops/add.h"
#include "core/ops/linear.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::leaf;
using testing::scaled;
using testing::weighted_sum;

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
  TapeOptions options;
  options.between_nodes = [&] { used.push_back(host_.arena().used_bytes()); };
  const auto tape = host_.tape(fp32_, std::move(options));
  const Var loss = chain(*tape);
  const size_t forward = host_.arena().used_bytes();
  EXPECT_GE(forward, kDepth * kBlockBytes);
  tape->backward(loss);
  ASSERT_EQ(used.size(), kDepth + 2u);
  // After the loss: one gradient more, its input no longer needed. Then one activation goes with every node, and the
  // gradient of its output is replaced by that of its input.
  for (size_t node = 1; node + 1 < used.size(); ++node) EXPECT_EQ(used[node], used[node - 1] - kBlockBytes) << node;
  EXPECT_LE(used.back(), Arena::kAlignmentBytes) << "only the loss is left";
}

TEST_F(TapeMemory, PeakIsFarBelowTheSumOfActivationsAndGradients) {
  const auto tape = host_.tape(fp32_);
  tape->backward(chain(*tape));
  // kDepth activations, and a few blocks for the last output and the gradients in flight; kept gradients would double
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
    TapeOptions options;
    options.after_op = [&](std::string_view, std::string_view, Tensor& output) { addresses.push_back(output.raw()); };
    const auto tape = host_.tape(fp32_, std::move(options));
    const auto spy = [&](const Var& x) {  // notes where the gradient of x lies
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
