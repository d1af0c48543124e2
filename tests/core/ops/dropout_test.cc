// dropout: what its mask depends on, and what it does not.
#include "core/ops/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/ops/add.h"
#include "tests/testing/error_of.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

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
  // Rows of ones through `sites` dropouts, one after the other in the program; the result of the last.
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
  // n = 7000 draws: standard error sqrt(p (1 - p) / n) = 0.0052; five of them.
  EXPECT_NEAR(zeros / static_cast<double>(y.size()), kProbability, 5 * 0.0052);
}

// One micro-batch of six samples, or three and three, or one and five: the same elements go.
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
    Values expected = host_.values(y.value);  // x is 1: y is the factor of every element
    for (size_t i = 0; i < expected.size(); ++i) expected[i] *= dy[i];
    if (shared) y = add(*tape, residual, y);  // gives one tensor to both: dropout may not overwrite it
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

}  // namespace
}  // namespace mantissa
