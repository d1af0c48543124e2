// linear_cross_entropy: the same as a linear layer and its cross-entropy, whatever the size of the chunks.
#include "core/ops/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::leaf;
using Values = std::vector<float>;

constexpr int64_t kRows = 7, kInputs = 5, kVocab = 11;
const std::vector<int32_t> kTargets = {3, kIgnoreIndex, 0, 10, kIgnoreIndex, 3, 7};
constexpr float kLossGradient = 0.25f;

class LinearCrossEntropyOp : public ::testing::Test {
 protected:
  LinearCrossEntropyOp() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
  }

  struct Result {
    float sum;
    Values losses, d_x, d_weight;
  };
  // In one piece for chunk_rows 0.
  Result run(const PrecisionPolicy& precision, int64_t chunk_rows) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(precision, TapeOptions(), kLossGradient);
    const Tensor targets = host_.tensor(kTargets);
    const Var x = leaf(*tape, x_);
    const LossOutput loss = chunk_rows == 0 ? cross_entropy(*tape, linear(*tape, x, weight_, nullptr), targets)
                                            : linear_cross_entropy(*tape, x, weight_, targets, chunk_rows);
    Result result{host_.scalar(loss.sum.value), host_.values(loss.losses), {}, {}};
    tape->backward(loss.sum);
    result.d_x = host_.values(x_.gradient);
    result.d_weight = host_.values(weight_.gradient);
    return result;
  }

  // How far two ways of multiplying may take a loss and an element of a gradient apart. Sums of K products in fp32
  // differ by at most K roundings each; rounded to `dtype`, by a unit in the last place (2u) more. A logit that is off
  // by `logit` moves both terms of loss = lse - logit[target], each computed with the 12 + V roundings of
  // kCrossEntropyTolerance, and a probability p by 2 logit p. d_logits = scale (p - onehot), of which a row's absolute
  // values sum to 2 scale at most, are rounded to `dtype` and summed over V (d_x) or rows (d_weight).
  struct Distance {
    double loss = 0.0, d_x = 0.0, d_weight = 0.0;
  };
  Distance distance(DType dtype) {
    const double ulp = dtype == DType::kF32 ? 0.0 : limits(dtype).epsilon, step = 0x1p-24;
    const Values x = host_.values(x_.weight), w = host_.values(weight_.weight);
    double magnitude = 0.0, largest_weight = 0.0, largest_input = 0.0;
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t v = 0; v < kVocab; ++v) {
        double sum = 0.0;
        for (size_t k = 0; k < kInputs; ++k) sum += std::abs(x[r * kInputs + k] * w[v * kInputs + k]);
        magnitude = std::max(magnitude, sum * (1.0 + ulp) * (1.0 + ulp));  // of the rounded operands
      }
    }
    for (const float value : w) largest_weight = std::max(largest_weight, std::abs(value) * (1.0 + ulp));
    for (const float value : x) largest_input = std::max(largest_input, std::abs(value) * (1.0 + ulp));
    const double logit = (2 * kInputs * step + ulp) * magnitude;
    const double loss = 2 * logit + 2 * (12 + kVocab) * step * (2 * magnitude + std::log(kVocab));
    const double d_x = kLossGradient * largest_weight * (2 * logit + 2 * ulp + 2 * (8 + 2 * kVocab) * step);
    const double d_weight = kLossGradient * largest_input * kRows * (2 * logit + ulp + (8 + 2 * kRows) * step);
    return {loss, d_x, d_weight};
  }
  static void expect_near(const Values& values, const Values& expected, double distance, int64_t chunk_rows) {
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], distance) << chunk_rows << ", " << i;
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  UniformPrecision bf16_{testing::autocast(DType::kBF16)};
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kRows, kInputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& weight_ = parameters_.add("head.weight", {kVocab, kInputs}, {Init::Kind::kNormal, 1.0f});
};

TEST_F(LinearCrossEntropyOp, OneChunkGivesTheBitsOfTheTwoOps) {
  for (const PrecisionPolicy* precision : {&fp32_, &bf16_}) {
    const Result whole = run(*precision, 0), chunk = run(*precision, 100);
    EXPECT_EQ(chunk.sum, whole.sum);
    EXPECT_EQ(chunk.losses, whole.losses);
    EXPECT_EQ(chunk.d_x, whole.d_x);
    EXPECT_EQ(chunk.d_weight, whole.d_weight);
  }
}

// Rows do not know each other: only sums over rows are taken in another order, of fp32 terms in fp32. A GPU's library
// multiplies matrices of other heights by other kernels.
TEST_F(LinearCrossEntropyOp, ChunksChangeTheOrderOfSumsOverRowsOnly) {
  for (const PrecisionPolicy* precision : {&fp32_, &bf16_}) {
    const Result whole = run(*precision, 0);
    for (const int64_t rows : {1, 2, 3, 6}) {
      const Result chunks = run(*precision, rows);
      const Distance allowed = host_.is_gpu() ? distance(precision == &fp32_ ? DType::kF32 : DType::kBF16) : Distance{};
      expect_near(chunks.losses, whole.losses, allowed.loss, rows);
      expect_near(chunks.d_x, whole.d_x, allowed.d_x, rows);
      const double tolerance = 8 * 0x1p-24;  // sums of 7 terms
      EXPECT_NEAR(chunks.sum, whole.sum, tolerance * std::abs(whole.sum) + kRows * allowed.loss) << rows;
      const double d_weight = allowed.d_weight * std::sqrt(kVocab * kInputs) / testing::norm(whole.d_weight);
      EXPECT_LT(testing::relative_error(chunks.d_weight, whole.d_weight), tolerance + d_weight) << rows;
    }
  }
}

// A tied weight has a second use, and micro-batches follow each other.
TEST_F(LinearCrossEntropyOp, TheWeightsGradientIsAddedToWhatIsThere) {
  const Values once = run(fp32_, 2).d_weight;
  parameters_.forget_gradients();
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    const auto tape = host_.tape(fp32_, TapeOptions(), kLossGradient);
    tape->backward(linear_cross_entropy(*tape, leaf(*tape, x_), weight_, host_.tensor(kTargets), 2).sum);
  }
  Values twice = once;
  for (float& value : twice) value *= 2.0f;
  EXPECT_LT(testing::relative_error(host_.values(weight_.gradient), twice), 8 * 0x1p-24);
}

TEST_F(LinearCrossEntropyOp, EvaluationMakesNoGradient) {
  const Result trained = run(fp32_, 2);
  host_.backend().fill(weight_.gradient, 42.0f, host_.stream());
  const auto tape = host_.tape(fp32_, TapeOptions{.mode = TapeMode::kEvaluation});
  const LossOutput loss = linear_cross_entropy(*tape, Var{host_.tensor(host_.values(x_.weight), x_.shape)}, weight_,
                                               host_.tensor(kTargets), 2);
  EXPECT_EQ(host_.scalar(loss.sum.value), trained.sum);
  EXPECT_EQ(host_.values(weight_.gradient), Values(kVocab * kInputs, 42.0f));
}

// What it is for: the arena holds the logits of a chunk, not of all rows.
TEST_F(LinearCrossEntropyOp, TheArenaNeverHoldsAllLogits) {
  const auto peak = [&](int64_t chunk_rows) {
    constexpr int64_t kManyRows = 512, kManyWords = 1000;
    ParameterSet parameters;
    Parameter& weight = parameters.add("head.weight", {kManyWords, 8}, {Init::Kind::kNormal, 1.0f});
    host_.bind(parameters);
    host_.initialize(parameters, 1);
    host_.arena().rewind();
    const size_t before = host_.arena().peak_bytes();
    const auto tape = host_.tape(fp32_);
    const Var x{host_.tensor(Values(kManyRows * 8, 0.5f), {kManyRows, 8})};
    const Tensor targets = host_.tensor(std::vector<int32_t>(kManyRows, 3));
    tape->backward(linear_cross_entropy(*tape, x, weight, targets, chunk_rows).sum);
    return host_.arena().peak_bytes() - before;
  };
  const size_t chunked = peak(16);  // first: a peak stays
  EXPECT_LT(chunked, size_t{16 * 1000 * 4 + 512 * 8 * 4 * 4});
  EXPECT_GT(peak(512), size_t{400 * 1000 * 4});
}

TEST_F(LinearCrossEntropyOp, ErrorsNameTheWeight) {
  const auto tape = host_.tape(fp32_);
  const Var narrow{host_.tensor(Values(6), {2, 3})};
  EXPECT_EQ(error_of([&] { linear_cross_entropy(*tape, narrow, weight_, host_.tensor(kTargets), 2); }),
            "[linear_cross_entropy] 'head.weight' has shape (11, 5) (N, K); x must have shape (R, K), got (2, 3)");
}

}  // namespace
}  // namespace mantissa
