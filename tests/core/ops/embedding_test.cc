// embedding: positions, repeated tokens, a table that is the head's weight too.
#include "core/ops/embedding.h"

#include <gtest/gtest.h>

#include "core/ops/linear.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kVocab = 5, kChannels = 3, kLength = 3, kContext = 4;
const std::vector<int32_t> kTokens = {4, 0, 4, 2, 4, 0};  // two sequences; 1 and 3 do not occur

class EmbeddingOp : public ::testing::Test {
 protected:
  EmbeddingOp() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }
  Values gradient(const Parameter& parameter) { return host_.values(parameter.gradient); }
  void pass(Parameter* positions) {
    const auto tape = host_.tape(fp32_);
    const Var y = embedding(*tape, host_.tensor(kTokens), kLength, tokens_, positions);
    tape->backward(weighted_sum(*tape, y, dy_));
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& tokens_ = parameters_.add("tokens", {kVocab, kChannels}, {Init::Kind::kNormal, 1.0f});
  Parameter& positions_ = parameters_.add("positions", {kContext, kChannels}, {Init::Kind::kNormal, 1.0f});
  const Values dy_ = testing::normal_values(6 * kChannels, 4);
};

TEST_F(EmbeddingOp, ValueIsTokenPlusPosition) {
  const Values table = host_.values(tokens_.weight), positions = host_.values(positions_.weight);
  Values expected;
  for (size_t r = 0; r < kTokens.size(); ++r) {
    for (size_t c = 0; c < kChannels; ++c) {
      expected.push_back(table[static_cast<size_t>(kTokens[r]) * kChannels + c] +
                         positions[r % kLength * kChannels + c]);
    }
  }
  const auto tape = host_.tape(fp32_);
  EXPECT_EQ(host_.values(embedding(*tape, host_.tensor(kTokens), kLength, tokens_, &positions_).value), expected);
}

TEST_F(EmbeddingOp, GradientsSumOverOccurrencesAndClearRowsThatDoNotOccur) {
  host_.backend().fill(tokens_.gradient, 1e9f, host_.stream());  // left from the last step
  host_.backend().fill(positions_.gradient, 1e9f, host_.stream());
  pass(&positions_);
  Values d_tokens(kVocab * kChannels), d_positions(kContext * kChannels);
  for (size_t r = 0; r < kTokens.size(); ++r) {
    for (size_t c = 0; c < kChannels; ++c) {
      d_tokens[static_cast<size_t>(kTokens[r]) * kChannels + c] += dy_[r * kChannels + c];
      d_positions[r % kLength * kChannels + c] += dy_[r * kChannels + c];
    }
  }
  // Sums of at most three numbers, perhaps in another order.
  EXPECT_LT(testing::relative_error(gradient(tokens_), d_tokens), 4 * 0x1p-24);
  EXPECT_LT(testing::relative_error(gradient(positions_), d_positions), 4 * 0x1p-24);
  const Values row = gradient(tokens_);
  for (const size_t unused : {1u, 3u}) {
    for (size_t c = 0; c < kChannels; ++c) EXPECT_EQ(row[unused * kChannels + c], 0.0f);
  }
  for (size_t c = 0; c < kChannels; ++c)
    EXPECT_EQ(gradient(positions_)[3 * kChannels + c], 0.0f) << "beyond the length";

  Values twice = gradient(tokens_);
  for (float& value : twice) value *= 2;
  pass(&positions_);
  EXPECT_LT(testing::relative_error(gradient(tokens_), twice), 4 * 0x1p-24) << "the next micro-batch adds";
}

TEST_F(EmbeddingOp, WithoutPositionsOnlyTheTableGetsAGradient) {
  pass(nullptr);
  EXPECT_TRUE(tokens_.gradient_written);
  EXPECT_FALSE(positions_.gradient_written);
}

// The head writes first (all rows), the embedding then adds to the rows of its tokens.
TEST_F(EmbeddingOp, TableTiedToTheHead) {
  std::vector<std::string> ready;
  TapeOptions options;
  options.gradient_ready = [&](Parameter& parameter) { ready.push_back(parameter.name); };
  const Values direction = testing::normal_values(6 * kVocab, 6);
  const auto head_only = host_.tape(fp32_);
  const Tensor x = embedding(*host_.tape(fp32_), host_.tensor(kTokens), kLength, tokens_, nullptr).value;
  head_only->backward(weighted_sum(*head_only, linear(*head_only, Var{x}, tokens_, nullptr), direction));
  Values expected = gradient(tokens_);
  const Values table = host_.values(tokens_.weight);
  for (size_t r = 0; r < kTokens.size(); ++r) {
    for (size_t c = 0; c < kChannels; ++c) {
      for (size_t v = 0; v < kVocab; ++v) {
        expected[static_cast<size_t>(kTokens[r]) * kChannels + c] +=
            direction[r * kVocab + v] * table[v * kChannels + c];
      }
    }
  }
  parameters_.forget_gradients();
  const auto tape = host_.tape(fp32_, std::move(options));
  const Var y = linear(*tape, embedding(*tape, host_.tensor(kTokens), kLength, tokens_, nullptr), tokens_, nullptr);
  tape->backward(weighted_sum(*tape, y, direction));
  EXPECT_EQ(ready, std::vector<std::string>{"tokens"}) << "once";
  EXPECT_LT(testing::relative_error(gradient(tokens_), expected), 32 * 0x1p-24);  // sums of up to 20 products
}

TEST_F(EmbeddingOp, DtypeIsThePrecisions) {
  tokens_.working_dtype = DType::kBF16;
  host_.bind(parameters_);
  const Tensor tokens = host_.tensor(kTokens);
  const UniformPrecision bf16(testing::autocast(DType::kBF16));
  EXPECT_EQ(embedding(*host_.tape(bf16), tokens, kLength, tokens_, &positions_).value.dtype(), DType::kF32);
  EXPECT_EQ(embedding(*host_.tape(fp32_), tokens, kLength, tokens_, &positions_).value.dtype(), DType::kF32);
  EXPECT_EQ(embedding(*host_.tape(fp32_), tokens, kLength, tokens_, nullptr).value.dtype(), DType::kBF16);
}

TEST_F(EmbeddingOp, ErrorsSayWhatWasExpected) {
  const auto tape = host_.tape(fp32_);
  const Tensor tokens = host_.tensor(kTokens);
  EXPECT_EQ(error_of([&] { embedding(*tape, host_.tensor(Values(6), {6}), kLength, tokens_, nullptr); }),
            "[embedding] tokens must be i32, got fp32");
  EXPECT_EQ(error_of([&] { embedding(*tape, tokens, 4, tokens_, nullptr); }),
            "[embedding] 6 tokens are not a whole number of sequences of 4");
  EXPECT_EQ(error_of([&] { embedding(*tape, tokens, 6, tokens_, &positions_); }),
            "[embedding] position table must be (>= 6, 3), got (4, 3)");
}

}  // namespace
}  // namespace mantissa
