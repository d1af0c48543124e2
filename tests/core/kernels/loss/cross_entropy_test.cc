#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/loss/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/complex_step.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_integers;
using reference::random_values;

constexpr int32_t kIgnore = -100;
constexpr double kScale = 0.125;

struct Outputs {
  Tensor losses, lse, sum;
};

Outputs forward(const Tensor& logits, const std::vector<int32_t>& targets, float softcap = 0.0f) {
  const int64_t rows = static_cast<int64_t>(targets.size());
  Outputs out{make_unwritten(DType::kF32, {rows}), make_unwritten(DType::kF32, {rows}),
              make_unwritten(DType::kF32, {1})};
  run(CrossEntropyForwardArgs{.logits = logits,
                              .targets = make_indices(targets),
                              .losses = out.losses,
                              .lse = out.lse,
                              .loss_sum = out.sum,
                              .ignore_index = kIgnore,
                              .softcap = softcap});
  return out;
}

void backward(const Tensor& logits, const std::vector<int32_t>& targets, const Tensor& lse, double scale = kScale,
              float softcap = 0.0f) {
  run(CrossEntropyBackwardArgs{.logits = logits,
                               .targets = make_indices(targets),
                               .lse = lse,
                               .scale = make_tensor(DType::kF32, {1}, {scale}),
                               .ignore_index = kIgnore,
                               .softcap = softcap});
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
    spread[i] = 1.0 + std::abs(lse[i]) + 2.0 * range;  // a term e^(x - max) is off by at most |x - max| units
    sum += losses[i];
    sum_magnitude += losses[i] + spread[i];
  }
  const double steps = kCrossEntropyTolerance.steps(static_cast<double>(columns));
  expect_close(out.lse, lse, spread, steps, "lse");
  expect_close(out.losses, losses, sum_of(losses, spread), steps, "losses");
  expect_close(out.sum, {sum}, {sum_magnitude}, steps, "loss_sum");
  EXPECT_EQ(values_of(out.losses)[r / 2], 0.0);

  // Backward pass from the reference's lse, rounded.
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
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const int64_t columns : {1, 2, 3, 17, 63, 65, 129, 4099}) {
        SCOPED_TRACE(::testing::Message() << columns << " columns");
        check(dtype, 1, columns, 3.0);
        check(dtype, 3, columns, 10.0);
        check(dtype, 5, columns, 60.0);
      }
    }
  });
}

// Vectors, several rounds of a block along a row, more rows than the emulated GPU's grid and than one run of a sum.
TEST(CrossEntropy, AgreesWithTheReferenceAtOtherShapes) {
  for (const DType dtype : kFloatDTypes) {
    for (const int64_t columns : {8, 264, 8999, 17000}) {
      SCOPED_TRACE(::testing::Message() << columns << " columns");
      check(dtype, 3, columns, 10.0);
    }
    check(dtype, 301, 9, 10.0);
  }
}

void check_softcap(DType dtype, int64_t columns, double range, float softcap) {
  const std::vector<int32_t> targets = {0, kIgnore, static_cast<int32_t>(columns - 1)};
  const Tensor logits = make_tensor(dtype, {3, columns}, random_values(3 * columns, 1, -range, range));
  const std::vector<double> v = values_of(logits);
  const double cap = static_cast<double>(softcap);
  const auto losses_of = [&](auto z) {
    for (auto& logit : z) logit = cap * std::tanh(logit / cap);
    return reference::cross_entropy_forward(z, targets, kIgnore);
  };
  const Outputs out = forward(logits, targets, softcap);
  // Beside those of check(), a capped logit is off by a few units.
  const double spread = 1.0 + std::log(static_cast<double>(columns)) + 8.0 * cap;
  const double steps = kCrossEntropyTolerance.steps(static_cast<double>(columns));
  expect_close(out.losses, losses_of(v), {spread, spread, spread}, steps, "losses");

  std::vector<double> lse, capped = v, magnitude(v.size());
  for (double& logit : capped) logit = cap * std::tanh(logit / cap);
  const size_t n = static_cast<size_t>(columns);
  for (size_t row = 0; row < 3; ++row) lse.push_back(reference::log_sum_exp(capped.data() + row * n, n));
  const std::vector<double> expected =
      reference::complex_step_gradient(v, [&](const auto& z) { return kScale * (losses_of(z)[0] + losses_of(z)[2]); });
  for (size_t i = 0; i < v.size(); ++i) {
    const double p = std::exp(capped[i] - lse[i / n]), slope = 1.0 / std::pow(std::cosh(v[i] / cap), 2.0);
    magnitude[i] = kScale * p * slope * (2.0 * spread) + 2.0 * std::abs(expected[i]);
  }
  backward(logits, targets, make_tensor(DType::kF32, {3}, lse), kScale, softcap);
  expect_close(logits, expected, magnitude, kCrossEntropyGradientTolerance.steps(), "gradient");
}

// Logits far below the cap, around it, and where tanh is all but 1.
TEST(CrossEntropy, ASoftcapAgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const int64_t columns : {3, 65, 200}) {
        SCOPED_TRACE(::testing::Message() << columns << " columns");
        check_softcap(dtype, columns, 3.0, 30.0f);
        check_softcap(dtype, columns, 10.0, 15.0f);
        check_softcap(dtype, columns, 60.0, 5.0f);
      }
    }
  });
}

TEST(CrossEntropy, ASoftcapDoesNotHideInfinity) {
  for (const double bad : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL}) {
    std::vector<double> values = random_values(3 * 67, 1);
    values[67 + 40] = bad;
    const Tensor logits = make_tensor(DType::kF32, {3, 67}, values);
    const Outputs out = forward(logits, {1, 2, 3}, 15.0f);
    backward(logits, {1, 2, 3}, out.lse, kScale, 15.0f);
    const std::vector<double> gradient = values_of(logits);
    for (size_t row = 0; row < 3; ++row) EXPECT_EQ(std::isnan(values_of(out.losses)[row]), row == 1) << row;
    for (size_t i = 0; i < gradient.size(); ++i) EXPECT_EQ(std::isnan(gradient[i]), i / 67 == 1) << i;
  }
  const Tensor logits = make_tensor(DType::kF32, {1, 3}, {0.0, 1.0, 2.0});
  expect_contract_error([&] { forward(logits, {0}, -1.0f); },
                        "[cross_entropy] softcap must be positive, or 0 for none, got -1");
}

TEST(CrossEntropy, ARowsResultDoesNotDependOnWhereItLies) {
  constexpr int64_t kRows = 9, kColumns = 1027;  // rows at every distance from a 16-byte boundary
  const std::vector<double> row = random_values(kColumns, 1, -5.0, 5.0);
  std::vector<double> values;
  for (int64_t i = 0; i < kRows; ++i) values.insert(values.end(), row.begin(), row.end());
  for (const DType dtype : kFloatDTypes) {
    const Tensor logits = make_tensor(dtype, {kRows, kColumns}, values);
    const std::vector<int32_t> targets(kRows, 5);
    const Outputs out = forward(logits, targets);
    backward(logits, targets, out.lse);
    for (int64_t i = 1; i < kRows; ++i) {
      EXPECT_EQ(values_of(out.losses)[static_cast<size_t>(i)], values_of(out.losses)[0]) << i;
      EXPECT_EQ(bytes_of(logits.slice(i * kColumns, kColumns)), bytes_of(logits.slice(0, kColumns))) << i;
    }
  }
}

TEST(CrossEntropy, ACertainTargetKeepsItsSmallGradient) {
  device_under_test().on_each_variant([] {
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
  device_under_test().on_each_variant([] {
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
  device_under_test().on_each_variant([] {
    const Tensor logits = make_tensor(DType::kF32, {1, 3}, {0.0, -HUGE_VAL, 0.0});
    const Outputs out = forward(logits, {0});
    expect_close(out.losses, {std::log(2.0)}, {1.0}, kCrossEntropyTolerance.steps(3), "loss");
    backward(logits, {0}, out.lse);
    EXPECT_EQ(values_of(logits)[1], 0.0);

    std::vector<double> values(1000, -HUGE_VAL);  // most threads and vectors see only these
    values[900] = 2.5;
    const Tensor long_row = make_tensor(DType::kBF16, {1, 1000}, values);
    const Outputs one = forward(long_row, {900});
    EXPECT_EQ(values_of(one.lse)[0], 2.5);
    EXPECT_EQ(values_of(one.losses)[0], 0.0);
    backward(long_row, {900}, one.lse);
    EXPECT_EQ(values_of(long_row), std::vector<double>(1000, 0.0));
  });
}

TEST(CrossEntropy, NothingButMinusInfinityIsNaN) {
  device_under_test().on_each_variant([] {
    for (const double other : {-HUGE_VAL, static_cast<double>(NAN)}) {
      std::vector<double> values(2 * 600, -HUGE_VAL);
      values[600] = other;
      const Tensor logits = make_tensor(DType::kBF16, {2, 600}, values);
      const Outputs out = forward(logits, {1, 1});
      backward(logits, {1, 1}, out.lse);
      for (const Tensor& result : {out.losses, out.lse, logits}) {
        for (const double value : values_of(result)) EXPECT_TRUE(std::isnan(value));
      }
    }
  });
}

TEST(CrossEntropy, TheSameBitsOnEverySchedule) {
  const std::vector<double> values = random_values(67 * 513, 1, -5.0, 5.0);
  std::vector<int32_t> targets = random_integers(67, 2, 513);
  targets[7] = kIgnore;
  for (const DType dtype : kFloatDTypes) {
    expect_same_bits_on_every_schedule([&] {
      const Tensor logits = make_tensor(dtype, {67, 513}, values);
      const Outputs out = forward(logits, targets);
      backward(logits, targets, out.lse);
      return std::vector<Tensor>{out.losses, out.lse, out.sum, logits};
    });
  }
}

TEST(CrossEntropy, RefusesWhatDoesNotFit) {
  const Tensor logits = make_tensor(DType::kF32, {2, 3}, random_values(6, 1));
  expect_contract_error([&] { forward(logits, {0}); }, "[cross_entropy] targets must have 2 elements, got shape (1)");
  expect_contract_error(
      [&] {
        backward(logits, {0, 1}, make_tensor(DType::kBF16, {2}, {0, 0}));
      },
      "[cross_entropy backward] lse must be fp32, got bf16");
}

}  // namespace
}  // namespace mantissa::kernel_test
