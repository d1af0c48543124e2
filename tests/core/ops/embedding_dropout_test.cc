// embedding: positions, repeated tokens, a table that also serves as the head's weight.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/ops/add.h"
#include "core/ops/embedding.h"
#include "core/ops/linear.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace embedding_dropout_test {

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

TEST_F(EmbeddingOp, PositionsCountFromTheStartOfADocument) {
  const std::vector<int64_t> at = {0, 0, 1, 0, 1, 0};
  const Tensor starts = host_.tensor(std::vector<int32_t>{0, 1, 1, 0, 0, 2});
  const auto tape = host_.tape(fp32_);
  const Var y = embedding(*tape, host_.tensor(kTokens), kLength, tokens_, &positions_, starts);
  const Values table = host_.values(tokens_.weight), positions = host_.values(positions_.weight);
  Values expected, d_positions(kContext * kChannels);
  for (size_t r = 0; r < kTokens.size(); ++r) {
    for (size_t c = 0; c < kChannels; ++c) {
      const size_t position = static_cast<size_t>(at[r]) * kChannels + c;
      expected.push_back(table[static_cast<size_t>(kTokens[r]) * kChannels + c] + positions[position]);
      d_positions[position] += dy_[r * kChannels + c];
    }
  }
  EXPECT_EQ(host_.values(y.value), expected);
  tape->backward(weighted_sum(*tape, y, dy_));
  EXPECT_LT(testing::relative_error(gradient(positions_), d_positions), 4 * 0x1p-24);
}

TEST_F(EmbeddingOp, GradientsSumOverOccurrencesAndClearRowsThatDoNotOccur) {
  host_.backend().fill(tokens_.gradient, 1e9f, host_.stream());  // left over from the last step
  host_.backend().fill(positions_.gradient, 1e9f, host_.stream());
  pass(&positions_);
  Values d_tokens(kVocab * kChannels), d_positions(kContext * kChannels);
  for (size_t r = 0; r < kTokens.size(); ++r) {
    for (size_t c = 0; c < kChannels; ++c) {
      d_tokens[static_cast<size_t>(kTokens[r]) * kChannels + c] += dy_[r * kChannels + c];
      d_positions[r % kLength * kChannels + c] += dy_[r * kChannels + c];
    }
  }
  // Sums of at most three numbers, possibly in another order.
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

// The head writes all rows first. The embedding then adds to the rows of its tokens.
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

// --- dropout: the inputs that determine its mask.
namespace masks {

using testing::leaf;

constexpr int64_t kSamples = 6, kPositions = 5, kChannels = 7, kPerSample = kPositions * kChannels;
constexpr float kProbability = 0.25f;

class DropoutOp : public ::testing::Test {
 protected:
  DropoutOp() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }
  static TapeOptions options(RandomKey key, TapeMode mode = TapeMode::kTraining) {
    TapeOptions result;
    result.mode = mode;
    result.random = key;
    return result;
  }
  // Passes rows of ones through `sites` consecutive dropouts. Returns the result of the last.
  Values ones_through(RandomKey key, int64_t samples, int sites = 1) {
    const auto tape = host_.tape(fp32_, options(key));
    const Var x{
        host_.tensor(Values(static_cast<size_t>(samples * kPerSample), 1.0f), {samples * kPositions, kChannels})};
    for (int site = 1; site < sites; ++site) dropout(*tape, x, kProbability, samples);
    return host_.values(dropout(*tape, x, kProbability, samples).value);
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kSamples * kPositions, kChannels}, {Init::Kind::kOnes});
  Parameter& other_ = parameters_.add("other", {kSamples * kPositions, kChannels}, {});
};

TEST_F(DropoutOp, KeepsAndScales) {
  const Values y = ones_through({.seed = 1}, 200);
  const auto zeros = static_cast<double>(std::count(y.begin(), y.end(), 0.0f));
  const auto kept = static_cast<double>(std::count(y.begin(), y.end(), 1.0f / (1.0f - kProbability)));
  EXPECT_EQ(zeros + kept, static_cast<double>(y.size())) << "nothing else occurs";
  // n = 7000 draws: five standard errors of sqrt(p (1 - p) / n) = 0.0052.
  EXPECT_NEAR(zeros / static_cast<double>(y.size()), kProbability, 5 * 0.0052);
}

// Six samples as a whole or as two micro-batches (1 + 5, 3 + 3, 5 + 1): the same elements are dropped.
TEST_F(DropoutOp, DoesNotDependOnTheSplitIntoMicroBatches) {
  const Values whole = ones_through({.seed = 3, .step = host_.step(17), .first_sample = 100}, kSamples);
  for (const int64_t split : {1, 3, 5}) {
    Values parts = ones_through({.seed = 3, .step = host_.step(17), .first_sample = 100}, split);
    const Values rest = ones_through(
        {.seed = 3, .step = host_.step(17), .first_sample = static_cast<uint32_t>(100 + split)}, kSamples - split);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << split;
  }
}

TEST_F(DropoutOp, DependsOnSeedStepSampleAndSite) {
  const Values base = ones_through({.seed = 3, .step = host_.step(17)}, kSamples);
  EXPECT_EQ(ones_through({.seed = 3, .step = host_.step(17)}, kSamples), base);
  EXPECT_NE(ones_through({.seed = 4, .step = host_.step(17)}, kSamples), base);
  EXPECT_NE(ones_through({.seed = 3, .step = host_.step(18)}, kSamples), base);
  EXPECT_NE(ones_through({.seed = 3, .step = host_.step(17), .first_sample = 1}, kSamples), base);
  EXPECT_NE(ones_through({.seed = 3, .step = host_.step(17)}, kSamples, 2), base)
      << "the second dropout of the model has its own mask";
}

TEST_F(DropoutOp, MaskDoesNotDependOnTheDtype) {
  const Values wide = ones_through({.seed = 1}, kSamples);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto tape = host_.tape(fp32_, options({.seed = 1}));
    const Var x{host_.tensor(Values(kSamples * kPerSample, 1.0f), {kSamples * kPositions, kChannels}, dtype)};
    const Tensor y = dropout(*tape, x, kProbability, kSamples).value;
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(host_.values(y), host_.values(host_.tensor(wide, y.shape(), dtype)));
  }
}

TEST_F(DropoutOp, IsOffInEvaluationAndAtProbabilityZero) {
  const auto evaluation = host_.tape(fp32_, options({.seed = 1}, TapeMode::kEvaluation));
  const Var x{x_.weight};
  EXPECT_EQ(dropout(*evaluation, x, kProbability, kSamples).value.raw(), x.value.raw()) << "the very tensor";
  const auto training = host_.tape(fp32_, options({.seed = 1}));
  EXPECT_EQ(dropout(*training, x, 0.0f, kSamples).value.raw(), x.value.raw());
  EXPECT_EQ(training->size(), 0u);
}

TEST_F(DropoutOp, BackwardDropsWhatForwardDroppedInPlaceOrNot) {
  const Values dy = testing::normal_values(x_.numel(), 5);
  for (const bool shared : {false, true}) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(fp32_, options({.seed = 1, .step = host_.step(2), .first_sample = 3}));
    const Var residual = leaf(*tape, other_);
    Var y = dropout(*tape, leaf(*tape, x_), kProbability, kSamples);
    Values expected = host_.values(y.value);  // x is 1, so y is the factor of every element
    for (size_t i = 0; i < expected.size(); ++i) expected[i] *= dy[i];
    if (shared) y = add(*tape, residual, y);  // the sum and dropout then share one gradient tensor: no overwriting
    tape->backward(weighted_sum(*tape, y, dy));
    EXPECT_EQ(host_.values(x_.gradient), expected) << (shared ? "shared" : "in place");
    if (shared) {
      EXPECT_EQ(host_.values(other_.gradient), dy);
    }
  }
}

TEST_F(DropoutOp, BadArgumentsAreNamed) {
  const auto tape = host_.tape(fp32_);
  const Var x{x_.weight};
  EXPECT_EQ(error_of([&] { dropout(*tape, x, 1.0f, kSamples); }), "[dropout] probability must be in [0, 1), got 1");
  EXPECT_EQ(error_of([&] { dropout(*tape, x, -0.5f, kSamples); }), "[dropout] probability must be in [0, 1), got -0.5");
  EXPECT_EQ(error_of([&] { dropout(*tape, x, NAN, kSamples); }), "[dropout] probability must be in [0, 1), got nan");
  EXPECT_EQ(error_of([&] { dropout(*tape, x, 0.1f, 4); }), "[dropout] 210 elements do not divide into 4 samples");
  EXPECT_EQ(error_of([&] { dropout(*tape, x, 0.1f, 0); }), "[dropout] 210 elements do not divide into 0 samples");
}

}  // namespace masks
}  // namespace embedding_dropout_test
}  // namespace mantissa
