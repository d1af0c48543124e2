#include "core/cpu/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/cpu/kernel_check.h"
#include "tests/core/cpu/test_tensor.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/random_values.h"

namespace mantissa::cpu {
namespace {

using reference::random_integers;
using reference::random_values;

constexpr int32_t kIgnore = -100;
constexpr double kScale = 0.125;

struct Outputs {
  Tensor losses, lse, sum;
};

Outputs forward(const Tensor& logits, const std::vector<int32_t>& targets) {
  const int64_t rows = static_cast<int64_t>(targets.size());
  Outputs out{make_unwritten(DType::kF32, {rows}), make_unwritten(DType::kF32, {rows}),
              make_unwritten(DType::kF32, {1})};
  cross_entropy_forward({.logits = logits,
                         .targets = make_indices(targets),
                         .losses = out.losses,
                         .lse = out.lse,
                         .loss_sum = out.sum,
                         .ignore_index = kIgnore});
  return out;
}

void backward(const Tensor& logits, const std::vector<int32_t>& targets, const Tensor& lse, double scale = kScale) {
  cross_entropy_backward({.logits = logits,
                          .targets = make_indices(targets),
                          .lse = lse,
                          .scale = static_cast<float>(scale),
                          .ignore_index = kIgnore});
}

void check(DType dtype, int64_t rows, int64_t columns, double range) {
  std::vector<int32_t> targets = random_integers(rows, 2, static_cast<int32_t>(columns));
  targets[static_cast<size_t>(rows / 2)] = kIgnore;
  const Tensor logits = make_tensor(dtype, {rows, columns}, random_values(rows * columns, 1, -range, range));
  const std::vector<double> v = values_of(logits);
  const size_t n = static_cast<size_t>(columns), r = targets.size();
  const Outputs out = forward(logits, targets);
  ASSERT_EQ(values_of(logits), v) << "forward must leave the logits";

  const std::vector<double> losses = reference::cross_entropy_forward(v, targets, kIgnore);
  std::vector<double> lse(r), spread(r);
  double sum = 0.0, sum_magnitude = 0.0;
  for (size_t i = 0; i < r; ++i) {
    lse[i] = reference::log_sum_exp(v.data() + i * n, n);
    spread[i] = 1.0 + std::abs(lse[i]) + 2.0 * range;  // a term e^(x - max) is wrong by |x - max| units at most
    sum += losses[i];
    sum_magnitude += losses[i] + spread[i];
  }
  const double steps = kCrossEntropyTolerance.steps(std::min(static_cast<double>(columns), 4096.0));
  expect_close(out.lse, lse, spread, steps, "lse");
  expect_close(out.losses, losses, sum_of(losses, spread), steps, "losses");
  expect_close(out.sum, {sum}, {sum_magnitude}, steps, "loss_sum");
  EXPECT_EQ(values_of(out.losses)[r / 2], 0.0);

  // Backward from the reference's lse, rounded.
  backward(logits, targets, make_tensor(DType::kF32, {rows}, lse));
  const std::vector<double> expected = reference::cross_entropy_backward(v, targets, kIgnore, kScale);
  std::vector<double> magnitude(v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    const double p = std::exp(v[i] - lse[i / n]);
    magnitude[i] = kScale * p * (1.0 + std::abs(lse[i / n]) + std::abs(v[i] - lse[i / n])) + std::abs(expected[i]);
    if (targets[i / n] == kIgnore) magnitude[i] = 0.0;
  }
  expect_close(logits, expected, magnitude, kCrossEntropyGradientTolerance.steps(), "gradient");
}

TEST(CrossEntropy, AgreesWithTheReferenceAtOddSizes) {
  on_each_target([] {
    for (const DType dtype : kFloatDTypes) {
      for (const int64_t columns : {1, 2, 3, 17, 63, 65, 129, 4099}) {
        SCOPED_TRACE(testing::Message() << columns << " columns");
        check(dtype, 1, columns, 3.0);
        check(dtype, 3, columns, 10.0);
        check(dtype, 5, columns, 60.0);
      }
    }
  });
}

TEST(CrossEntropy, ACertainTargetKeepsItsSmallGradient) {
  on_each_target([] {
    const Tensor logits = make_tensor(DType::kF32, {1, 3}, {12.0, -8.0, -9.0});
    const Outputs out = forward(logits, {0});
    const double loss = std::log1p(std::exp(-20.0) + std::exp(-21.0));
    expect_close(out.losses, {loss}, {13.0}, kCrossEntropyTolerance.steps(3), "loss");  // below the resolution of lse
    backward(logits, {0}, make_tensor(DType::kF32, {1}, {12.0}), 1.0);
    EXPECT_EQ(values_of(logits)[0], 0.0);  // expm1(12 - 12)
    EXPECT_NEAR(values_of(logits)[1], std::exp(-20.0), 1e-14);
  });
}

TEST(CrossEntropy, ANaNOrInfiniteLogitMakesItsRowNaNAndNoOther) {
  on_each_target([] {
    for (const DType dtype : kFloatDTypes) {
      for (const double bad : {static_cast<double>(NAN), HUGE_VAL}) {
        for (const size_t where : {0u, 40u, 66u}) {
          std::vector<double> values = random_values(3 * 67, 1);
          values[67 + where] = bad;
          const Tensor logits = make_tensor(dtype, {3, 67}, values);
          const Outputs out = forward(logits, {1, 2, 3});
          backward(logits, {1, 2, 3}, out.lse);
          for (size_t row = 0; row < 3; ++row) EXPECT_EQ(std::isnan(values_of(out.losses)[row]), row == 1) << row;
          EXPECT_TRUE(std::isnan(values_of(out.sum)[0]));
          const std::vector<double> gradient = values_of(logits);
          for (size_t i = 0; i < gradient.size(); ++i) EXPECT_EQ(std::isnan(gradient[i]), i / 67 == 1) << i;
        }
      }
    }
  });
}

TEST(CrossEntropy, MinusInfinityIsAProbabilityOfZero) {
  on_each_target([] {
    const Tensor logits = make_tensor(DType::kF32, {1, 3}, {0.0, -HUGE_VAL, 0.0});
    const Outputs out = forward(logits, {0});
    expect_close(out.losses, {std::log(2.0)}, {1.0}, kCrossEntropyTolerance.steps(3), "loss");
    backward(logits, {0}, out.lse);
    EXPECT_EQ(values_of(logits)[1], 0.0);
  });
}

TEST(CrossEntropy, ThreadInvariant) {
  const std::vector<double> values = random_values(67 * 513, 1, -5.0, 5.0);
  std::vector<int32_t> targets = random_integers(67, 2, 513);
  targets[7] = kIgnore;
  for (const DType dtype : kFloatDTypes) {
    expect_same_for_any_thread_count([&] {
      const Tensor logits = make_tensor(dtype, {67, 513}, values);
      const Outputs out = forward(logits, targets);
      backward(logits, targets, out.lse);
      return std::vector<Tensor>{out.losses, out.lse, out.sum, logits};
    });
  }
}

TEST(CrossEntropy, RefusesATargetOutsideOfTheVocabulary) {
  const Tensor logits = make_tensor(DType::kF32, {2, 3}, random_values(6, 1));
  expect_contract_error(
      [&] {
        forward(logits, {0, 3});
      },
      "[cross_entropy] targets must be in [0, 3) or ignore_index -100, got 3 in row 1");
  expect_contract_error([&] { backward(logits, {-1, 0}, make_tensor(DType::kF32, {2}, {0, 0})); }, "got -1 in row 0");
}

}  // namespace
}  // namespace mantissa::cpu
