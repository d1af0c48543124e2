// A dtype forced for an op is the dtype of the op's output on the tape, whatever its inputs are.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/ops/activation.h"
#include "core/ops/add.h"
#include "core/ops/attention.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/embedding.h"
#include "core/ops/linear.h"
#include "core/ops/norm.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace forced_dtype_test {

constexpr int64_t kRows = 4, kChannels = 8;
constexpr AttentionShape kHeads{.sequence_length = 4, .num_heads = 1, .num_kv_heads = 1, .head_dim = 8};

class ForcedDtype : public ::testing::TestWithParam<Op> {
 protected:
  ForcedDtype() {
    table_.working_dtype = matrix_.working_dtype = DType::kBF16;
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }
  // Runs the op on bf16 inputs. Returns the dtypes of its outputs in the order in which the tape saw them.
  std::vector<DType> outputs(std::optional<DType> forced) {
    Precision precision = testing::autocast(DType::kBF16);
    precision.forced[static_cast<size_t>(GetParam())] = forced;
    const UniformPrecision policy(precision);
    std::vector<DType> dtypes;
    TapeOptions options;
    options.after_op = [&](std::string_view, std::string_view op, Tensor& output) {
      EXPECT_EQ(op, name(GetParam()));
      dtypes.push_back(output.dtype());
    };
    const auto tape = host_.tape(policy, options);
    run(*tape);
    return dtypes;
  }

 private:
  Var input(int64_t channels) {
    return {host_.tensor(testing::normal_values(kRows * channels, 3), {kRows, channels}, DType::kBF16)};
  }
  void run(Tape& tape) {
    switch (GetParam()) {
      case Op::kEmbedding:
        embedding(tape, host_.tensor(std::vector<int32_t>{3, 1, 0, 2}), kRows, table_, nullptr);
        return;
      case Op::kLinear:
        linear(tape, input(kChannels), matrix_, nullptr);
        return;
      case Op::kAttention:
        attention(tape, input(3 * kChannels), kHeads);
        return;
      case Op::kLayerNorm:
        layer_norm(tape, input(kChannels), gain_, nullptr, 1e-5f, DType::kBF16);
        return;
      case Op::kRmsNorm:
        rms_norm(tape, input(kChannels), gain_, 1e-5f, DType::kBF16);
        return;
      case Op::kGelu:
        gelu(tape, input(kChannels), GeluForm::kErf);
        return;
      case Op::kSwiglu:
        swiglu(tape, input(2 * kChannels));
        return;
      case Op::kReluSquared:
        relu_squared(tape, input(kChannels));
        return;
      case Op::kRope:
        rope(tape, input(3 * kChannels), kHeads, RopeFrequencies{});
        return;
      case Op::kAdd:
        add(tape, input(kChannels), input(kChannels));
        return;
      case Op::kDropout:
        dropout(tape, input(kChannels), 0.5f, 1);
        return;
      case Op::kCrossEntropy:
        cross_entropy(tape, input(kChannels), host_.tensor(std::vector<int32_t>{3, 1, 0, 2}));
        return;
    }
  }

  testing::TapeHost host_;
  ParameterSet parameters_;
  Parameter& table_ = parameters_.add("table", {kRows, kChannels}, {Init::Kind::kOnes});
  Parameter& matrix_ = parameters_.add("matrix", {kChannels, kChannels}, {Init::Kind::kOnes});
  Parameter& gain_ = parameters_.add("gain", {kChannels}, {Init::Kind::kOnes});
};

// Ops that obey a forced dtype.
class ObeyingOp : public ForcedDtype {};

TEST_P(ObeyingOp, GivesItsOutputTheForcedDtype) {
  for (const DType forced : {DType::kF32, DType::kBF16, DType::kF16}) {
    EXPECT_EQ(outputs(forced), std::vector<DType>{forced});
  }
}

// Ops that always compute in fp32 and return the caller's dtype. AutocastPolicy rejects settings for them. If an op
// learns to obey a setting, move it above and remove the rejection.
class FixedOp : public ForcedDtype {};

TEST_P(FixedOp, GivesTheSameDtypeWhateverIsForced) {
  const std::vector<DType> expected{GetParam() == Op::kCrossEntropy ? DType::kF32 : DType::kBF16};
  EXPECT_EQ(outputs(std::nullopt), expected);
  for (const DType forced : {DType::kF32, DType::kBF16, DType::kF16}) EXPECT_EQ(outputs(forced), expected);
}

std::string test_name(const ::testing::TestParamInfo<Op>& info) { return std::string(name(info.param)); }

constexpr Op kObeying[] = {Op::kEmbedding,   Op::kLinear, Op::kAttention, Op::kGelu,   Op::kSwiglu,
                           Op::kReluSquared, Op::kRope,   Op::kAdd,       Op::kDropout};
constexpr Op kFixed[] = {Op::kLayerNorm, Op::kRmsNorm, Op::kCrossEntropy};
static_assert(std::size(kObeying) + std::size(kFixed) == kOpCount,
              "a new op belongs to kObeying, or to kFixed if it ignores a forced dtype");

INSTANTIATE_TEST_SUITE_P(Ops, ObeyingOp, ::testing::ValuesIn(kObeying), test_name);
INSTANTIATE_TEST_SUITE_P(Ops, FixedOp, ::testing::ValuesIn(kFixed), test_name);

}  // namespace forced_dtype_test
}  // namespace mantissa
