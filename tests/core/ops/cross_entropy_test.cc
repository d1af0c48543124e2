// cross_entropy: ignored targets, the gradient written over the logits, scaling by the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/ops/cross_entropy.h"
#include "core/ops/linear.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace cross_entropy_test {

using testing::error_of;
using testing::leaf;
using Values = std::vector<float>;

constexpr int64_t kRows = 6, kVocab = 11;
const std::vector<int32_t> kTargets = {3, kIgnoreIndex, 0, 10, kIgnoreIndex, 3};

class CrossEntropyOp : public ::testing::Test {
 protected:
  CrossEntropyOp() { set_up(DType::kF32, testing::normal_values(kRows * kVocab, 1, 3.0f)); }
  void set_up(DType dtype, const Values& logits) {
    logits_.working_dtype = dtype;
    host_.bind(parameters_);
    host_.set_weight(logits_, logits);
    parameters_.forget_gradients();
  }
  struct Result {
    float sum;
    Values losses, gradient;
  };
  Result run(const std::vector<int32_t>& targets, float seed) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(fp32_, TapeOptions(), seed);
    const LossOutput loss = cross_entropy(*tape, leaf(*tape, logits_), host_.tensor(targets));
    Result result{host_.scalar(loss.sum.value), host_.values(loss.losses), {}};
    tape->backward(loss.sum);
    result.gradient = host_.values(logits_.gradient);
    return result;
  }

  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& logits_ = parameters_.add("logits", {kRows, kVocab}, {});
};

// The formula in double: losses, and seed * (softmax - onehot).
void naive(const Values& logits, const std::vector<int32_t>& targets, double seed, Values* losses, Values* gradient) {
  losses->assign(kRows, 0.0f);
  gradient->assign(kRows * kVocab, 0.0f);
  for (size_t r = 0; r < kRows; ++r) {
    if (targets[r] == kIgnoreIndex) continue;
    double sum = 0.0;
    for (size_t v = 0; v < kVocab; ++v) sum += std::exp(double{logits[r * kVocab + v]});
    (*losses)[r] = static_cast<float>(std::log(sum) - logits[r * kVocab + static_cast<size_t>(targets[r])]);
    for (size_t v = 0; v < kVocab; ++v) {
      const double one = v == static_cast<size_t>(targets[r]) ? 1.0 : 0.0;
      (*gradient)[r * kVocab + v] = static_cast<float>(seed * (std::exp(double{logits[r * kVocab + v]}) / sum - one));
    }
  }
}

// lse and probabilities: the exponent, a logit difference of up to ~20, is off by 20 eps. A sum of 11 adds a few more.
constexpr double kTolerance = 32 * 0x1p-24;

TEST_F(CrossEntropyOp, ValueAndGradientAreThoseOfTheFormula) {
  Values losses, gradient;
  naive(host_.values(logits_.weight), kTargets, 0.25, &losses, &gradient);
  const Result result = run(kTargets, 0.25f);
  EXPECT_LT(testing::relative_error(result.losses, losses), kTolerance);
  EXPECT_LT(testing::relative_error(result.gradient, gradient), kTolerance);
  EXPECT_NEAR(result.sum, losses[0] + losses[2] + losses[3] + losses[5], kTolerance * result.sum);
  EXPECT_EQ(result.losses[1], 0.0f);
  EXPECT_EQ(result.losses[4], 0.0f);
}

TEST_F(CrossEntropyOp, SixteenBitLogitsGetAGradientOfFp32ArithmeticRoundedOnce) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    set_up(dtype, testing::normal_values(kRows * kVocab, 1, 3.0f));
    Values losses, gradient;
    naive(host_.values(logits_.weight), kTargets, 1024.0, &losses, &gradient);
    const Result result = run(kTargets, 1024.0f);
    EXPECT_LT(testing::relative_error(result.losses, losses), kTolerance) << name(dtype);
    EXPECT_LT(testing::relative_error(result.gradient, gradient), info(format_of(dtype)).epsilon / 2) << name(dtype);
    EXPECT_EQ(host_.values(host_.tensor(result.gradient, logits_.shape, dtype)), result.gradient)
        << "numbers of its dtype";
  }
}

TEST_F(CrossEntropyOp, AllTargetsIgnored) {
  const Result result = run(std::vector<int32_t>(kRows, kIgnoreIndex), 1e6f);
  EXPECT_EQ(result.sum, 0.0f);
  EXPECT_EQ(result.losses, Values(kRows));
  EXPECT_EQ(result.gradient, Values(kRows * kVocab));
}

// An ignored row must not affect the others; a counted row must.
TEST_F(CrossEntropyOp, NonFiniteLogitsMatterWhereTheTargetIsNotIgnored) {
  Values logits = testing::normal_values(kRows * kVocab, 1);
  logits[1 * kVocab + 2] = NAN;
  logits[4 * kVocab] = INFINITY;
  set_up(DType::kF32, logits);
  const Result ignored = run(kTargets, 1.0f);
  EXPECT_TRUE(std::isfinite(ignored.sum));
  EXPECT_EQ(ignored.gradient[1 * kVocab + 2], 0.0f);
  EXPECT_EQ(ignored.gradient[4 * kVocab], 0.0f);
  for (const size_t bad : {1u, 4u}) {
    std::vector<int32_t> targets = kTargets;
    targets[bad] = 5;
    EXPECT_FALSE(std::isfinite(run(targets, 1.0f).sum)) << bad;
  }
}

// fp32 cannot hold exp(1000). It can hold the log-sum-exp to half an ulp of 1002, which is 2^-15.
TEST_F(CrossEntropyOp, LargeLogitsDoNotOverflow) {
  set_up(DType::kF32, Values(kRows * kVocab, 1000.0f));
  const Result result = run(kTargets, 1.0f);
  EXPECT_NEAR(result.sum, 4 * std::log(11.0), 4 * 0x1p-15);
  EXPECT_NEAR(result.gradient[0], 1.0 / 11.0, 0x1p-15);
}

TEST_F(CrossEntropyOp, GradientReplacesTheLogits) {
  const auto tape = host_.tape(fp32_);
  Var logits = leaf(*tape, logits_);
  const std::byte* address = logits.value.raw();
  const std::byte* gradient_address = nullptr;
  const Var spied = tape->record(Op::kAdd, logits.value, {logits}, {}, [&, slot = logits.slot](Tape& t, Tensor dy) {
    gradient_address = dy.raw();
    t.give_gradient(Var{{}, slot}, std::move(dy));
  });
  const LossOutput loss = cross_entropy(*tape, spied, host_.tensor(kTargets));
  const size_t peak = host_.arena().peak_bytes();
  tape->backward(loss.sum);
  EXPECT_EQ(gradient_address, address);
  EXPECT_EQ(host_.arena().peak_bytes(), peak) << "no second copy";
}

TEST_F(CrossEntropyOp, EvaluationLeavesTheLogits) {
  TapeOptions options;
  options.mode = TapeMode::kEvaluation;
  const auto tape = host_.tape(fp32_, std::move(options));
  const Values before = host_.values(logits_.weight);
  const LossOutput loss = cross_entropy(*tape, Var{logits_.weight}, host_.tensor(kTargets));
  EXPECT_GT(host_.scalar(loss.sum.value), 0.0f);
  EXPECT_EQ(host_.values(logits_.weight), before);
}

TEST_F(CrossEntropyOp, TargetsMustMatchTheRows) {
  const auto tape = host_.tape(fp32_);
  const Var logits{logits_.weight};
  EXPECT_EQ(error_of([&] { cross_entropy(*tape, logits, host_.tensor(std::vector<int32_t>(5))); }),
            "[cross_entropy] targets must be 6 values of i32, got 5 of i32");
  EXPECT_EQ(error_of([&] { cross_entropy(*tape, logits, host_.tensor(Values(6), {6})); }),
            "[cross_entropy] targets must be 6 values of i32, got 6 of fp32");
}

// --- linear_cross_entropy: equals a linear layer and its cross-entropy, for any chunk size.
namespace chunked {

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
  // chunk_rows = 0: a single chunk.
  Result run(const PrecisionPolicy& precision, int64_t chunk_rows, float softcap = 0.0f) {
    parameters_.forget_gradients();
    const auto tape = host_.tape(precision, TapeOptions(), kLossGradient);
    const Tensor targets = host_.tensor(kTargets);
    const Var x = leaf(*tape, x_);
    const LossOutput loss = chunk_rows == 0 ? cross_entropy(*tape, linear(*tape, x, weight_, nullptr), targets, softcap)
                                            : linear_cross_entropy(*tape, x, weight_, targets, chunk_rows, softcap);
    Result result{host_.scalar(loss.sum.value), host_.values(loss.losses), {}, {}};
    tape->backward(loss.sum);
    result.d_x = host_.values(x_.gradient);
    result.d_weight = host_.values(weight_.gradient);
    return result;
  }

  // How far two ways to multiply may move a loss and a gradient element apart. Sums of K products in fp32 differ by at
  // most K roundings each; rounded to `dtype`, by one more unit in the last place (2u). A logit off by `logit` moves
  // both terms of loss = lse - logit[target], each computed with the 12 + V roundings of kCrossEntropyTolerance. It
  // moves a probability p by 2 logit p. d_logits = scale (p - onehot), whose absolute values in a row sum to at most 2
  // scale, are rounded to `dtype` and summed over V (d_x) or rows (d_weight).
  struct Distance {
    double loss = 0.0, d_x = 0.0, d_weight = 0.0;
  };
  Distance distance(DType dtype) {
    const double ulp = dtype == DType::kF32 ? 0.0 : info(format_of(dtype)).epsilon, step = 0x1p-24;
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
    std::vector<Result> capped;
    for (const float softcap : {0.0f, 2.0f}) {
      const Result whole = run(*precision, 0, softcap), chunk = run(*precision, 100, softcap);
      EXPECT_EQ(chunk.sum, whole.sum);
      EXPECT_EQ(chunk.losses, whole.losses);
      EXPECT_EQ(chunk.d_x, whole.d_x);
      EXPECT_EQ(chunk.d_weight, whole.d_weight);
      capped.push_back(whole);
    }
    EXPECT_NE(capped[0].sum, capped[1].sum);
    EXPECT_NE(capped[0].d_x, capped[1].d_x);
  }
}

// Rows are independent, so only sums over rows have another order, of fp32 terms in fp32. A GPU's library uses other
// kernels for matrices of other heights.
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

// A tied weight is used twice, and micro-batches follow each other.
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

// The purpose: the arena holds the logits of one chunk, never of all rows.
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
  const size_t chunked = peak(16);  // measure it first, because a peak stays
  EXPECT_LT(chunked, size_t{16 * 1000 * 4 + 512 * 8 * 4 * 4});
  EXPECT_GT(peak(512), size_t{400 * 1000 * 4});
}

TEST_F(LinearCrossEntropyOp, ErrorsNameTheWeight) {
  const auto tape = host_.tape(fp32_);
  const Var narrow{host_.tensor(Values(6), {2, 3})};
  EXPECT_EQ(error_of([&] { linear_cross_entropy(*tape, narrow, weight_, host_.tensor(kTargets), 2); }),
            "[linear_cross_entropy] 'head.weight' has shape (11, 5) (N, K); x must have shape (R, K), got (2, 3)");
}

}  // namespace chunked
}  // namespace cross_entropy_test
}  // namespace mantissa
