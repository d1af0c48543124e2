// cross_entropy: ignored targets, the gradient in the place of the logits, scaling by the seed.
#include "core/ops/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/error_of.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

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

// lse and probabilities: the exponent of a logit difference of up to ~20 is off by 20 eps, a sum of 11 adds a few more.
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
    EXPECT_LT(testing::relative_error(result.gradient, gradient), limits(dtype).epsilon / 2) << name(dtype);
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

// A row that does not count must not poison those that do; one that counts must.
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

// exp(1000) is no fp32 number. The log-sum-exp is one, kept to half an ulp of 1002, which is 2^-15.
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

}  // namespace
}  // namespace mantissa
