#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/norm/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/norm/norm_cases.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/layer_norm.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

constexpr float kEpsilon = 1e-5f;

struct Forward {
  Tensor x, weight, bias, y, mean, rstd;
};

Forward run_forward(const NormDTypes& dtypes, int64_t rows, int64_t columns, bool with_bias, double shift) {
  Forward f{make_tensor(dtypes.x, {rows, columns}, random_values(rows * columns, 1, shift - 2.0, shift + 3.0)),
            make_tensor(dtypes.weight, {columns}, random_values(columns, 2, 0.5, 1.5)),
            with_bias ? make_tensor(dtypes.weight, {columns}, random_values(columns, 3)) : Tensor(),
            make_unwritten(dtypes.y, {rows, columns}),
            make_unwritten(DType::kF32, {rows}),
            make_unwritten(DType::kF32, {rows})};
  run(LayerNormForwardArgs{
      .x = f.x, .weight = f.weight, .bias = f.bias, .y = f.y, .mean = f.mean, .rstd = f.rstd, .epsilon = kEpsilon});
  return f;
}

// Checks y, mean and rstd against those of x.
void check_normed(const Forward& f) {
  const bool with_bias = f.bias.defined();
  const std::vector<double> x = values_of(f.x), weight = values_of(f.weight);
  const std::vector<double> bias = with_bias ? values_of(f.bias) : std::vector<double>();
  const auto expected = reference::layer_norm_forward(x, weight, bias, kEpsilon);
  const size_t c = weight.size();
  std::vector<double> magnitude = xhat_magnitude(x, expected.mean, expected.rstd, c),
                      mean_magnitude(expected.mean.size());
  for (size_t i = 0; i < magnitude.size(); ++i) {
    magnitude[i] = magnitude[i] * weight[i % c] + (with_bias ? std::abs(bias[i % c]) : 0.0);
    mean_magnitude[i / c] += std::abs(x[i]) / static_cast<double>(c);
  }
  const double steps = kNormTolerance.steps(static_cast<double>(c));
  expect_close(f.y, expected.y, magnitude, steps, "y");
  expect_close(f.mean, expected.mean, mean_magnitude, steps, "mean");
  expect_close(f.rstd, expected.rstd, expected.rstd, steps, "rstd");
}

void check_forward(const NormDTypes& dtypes, int64_t rows, int64_t columns, bool with_bias, double shift) {
  check_normed(run_forward(dtypes, rows, columns, with_bias, shift));
}

TEST(LayerNorm, ForwardAgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_forward(dtypes, rows, columns, true, 0.0);
        check_forward(dtypes, rows, columns, false, 0.0);
      }
    }
  });
}

// E[x^2] - mean^2 would lose all digits of this variance.
TEST(LayerNorm, LargeMeanDoesNotCancel) {
  device_under_test().on_each_variant([] { check_forward(kNormDTypes[0], 5, 257, true, 1000.0); });
}

struct Sum {
  Tensor x, residual, sum;
  Forward norm;  // of the sum
};

Sum run_sum(const NormSumDTypes& dtypes, int64_t rows, int64_t columns) {
  const int64_t n = rows * columns;
  Sum s{make_tensor(dtypes.x, {rows, columns}, random_values(n, 11, -2.0, 3.0)),
        make_tensor(dtypes.residual, {rows, columns}, random_values(n, 12)),
        make_unwritten(dtypes.sum, {rows, columns}),
        {}};
  s.norm = {s.sum,
            make_tensor(dtypes.weight, {columns}, random_values(columns, 2, 0.5, 1.5)),
            make_tensor(dtypes.weight, {columns}, random_values(columns, 3)),
            make_unwritten(dtypes.y, {rows, columns}),
            make_unwritten(DType::kF32, {rows}),
            make_unwritten(DType::kF32, {rows})};
  run(LayerNormForwardArgs{.x = s.x,
                           .residual = s.residual,
                           .sum = s.sum,
                           .weight = s.norm.weight,
                           .bias = s.norm.bias,
                           .y = s.norm.y,
                           .mean = s.norm.mean,
                           .rstd = s.norm.rstd,
                           .epsilon = kEpsilon});
  return s;
}

void check_sum(const NormSumDTypes& dtypes, int64_t rows, int64_t columns) {
  const Sum s = run_sum(dtypes, rows, columns);
  const std::vector<double> expected = sum_of(values_of(s.x), values_of(s.residual));
  expect_close(s.sum, expected, absolute(expected), kAddTolerance.steps(), "sum");
  check_normed(s.norm);
}

TEST(LayerNorm, NormalisesASumAsItIsStored) { for_each_norm_sum(check_sum); }

// A kernel with a residual gives the bits of one on the ready sum. (tests/core/ops checks that the sum has the bits of
// an addition.)
TEST(LayerNorm, ASumIsNormalisedWithTheBitsOfOneThatIsThere) {
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    for (const NormSumDTypes& dtypes : kNormSumDTypes) {
      if (!has_dtype_of_an_addend(dtypes)) continue;
      for (const auto& [rows, columns] : kLargeNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        const Sum s = run_sum(dtypes, rows, columns);
        const Forward plain{s.sum,
                            s.norm.weight,
                            s.norm.bias,
                            make_unwritten(dtypes.y, {rows, columns}),
                            make_unwritten(DType::kF32, {rows}),
                            make_unwritten(DType::kF32, {rows})};
        run(LayerNormForwardArgs{.x = plain.x,
                                 .weight = plain.weight,
                                 .bias = plain.bias,
                                 .y = plain.y,
                                 .mean = plain.mean,
                                 .rstd = plain.rstd,
                                 .epsilon = kEpsilon});
        EXPECT_EQ(bytes_of(s.norm.y), bytes_of(plain.y));
        EXPECT_EQ(bytes_of(s.norm.mean), bytes_of(plain.mean));
        EXPECT_EQ(bytes_of(s.norm.rstd), bytes_of(plain.rstd));
      }
    }
  }
}

TEST(LayerNorm, RefusesASumWithoutAResidual) {
  const Sum s = run_sum(kNormSumDTypes[3], 2, 3);
  LayerNormForwardArgs args{
      .x = s.x, .sum = s.sum, .weight = s.norm.weight, .y = s.norm.y, .mean = s.norm.mean, .rstd = s.norm.rstd};
  expect_contract_error([&] { run(args); },
                        "[layer_norm] residual and sum must both be given or neither, got sum only");
  args.residual = make_unwritten(DType::kF32, {2, 2});
  expect_contract_error([&] { run(args); }, "[layer_norm] residual must have 6 elements, got shape");
}

void check_backward(const NormDTypes& dtypes, int64_t rows, int64_t columns, GradientMode mode, bool with_bias,
                    DType dx_dtype) {
  const Forward f = run_forward(dtypes, rows, columns, with_bias, 0.0);
  const bool accumulate = mode == GradientMode::kAccumulate;
  const auto gradient = [&](DType dtype, Shape shape, uint64_t seed) {
    return accumulate ? make_tensor(dtype, shape, random_values(shape.numel(), seed)) : make_unwritten(dtype, shape);
  };
  const Tensor dy = make_tensor(dtypes.y, {rows, columns}, random_values(rows * columns, 4));
  const Tensor dx = gradient(dx_dtype, {rows, columns}, 5);
  const Tensor d_weight = gradient(DType::kF32, {columns}, 6);
  const Tensor d_bias = with_bias ? gradient(DType::kF32, {columns}, 7) : Tensor();
  const std::vector<double> dx_before = values_of(dx), d_weight_before = values_of(d_weight);
  const std::vector<double> d_bias_before = with_bias ? values_of(d_bias) : std::vector<double>();
  run(LayerNormBackwardArgs{.x = f.x,
                            .dy = dy,
                            .weight = f.weight,
                            .mean = f.mean,
                            .rstd = f.rstd,
                            .dx = dx,
                            .d_weight = d_weight,
                            .d_bias = d_bias,
                            .mode = mode,
                            .weight_mode = mode,
                            .bias_mode = mode});

  const std::vector<double> x = values_of(f.x), weight = values_of(f.weight), d = values_of(dy);
  const size_t c = static_cast<size_t>(columns);
  const auto forward = reference::layer_norm_forward(x, weight, {}, kEpsilon);
  auto expected = reference::layer_norm_backward(x, d, weight, kEpsilon);
  auto magnitude = gradient_magnitudes(xhat_magnitude(x, forward.mean, forward.rstd, c), d, weight, forward.rstd);
  std::vector<double> bias_magnitude(c);
  for (size_t i = 0; i < d.size(); ++i) bias_magnitude[i % c] += std::abs(d[i]);
  if (accumulate) {
    expected.dx = sum_of(expected.dx, dx_before);
    expected.d_weight = sum_of(expected.d_weight, d_weight_before);
    magnitude.dx = sum_of(magnitude.dx, absolute(dx_before));
    magnitude.d_weight = sum_of(magnitude.d_weight, absolute(d_weight_before));
    if (with_bias) expected.d_bias = sum_of(expected.d_bias, d_bias_before);
    if (with_bias) bias_magnitude = sum_of(bias_magnitude, absolute(d_bias_before));
  }
  const double n = static_cast<double>(columns), r = static_cast<double>(rows);
  expect_close(dx, expected.dx, magnitude.dx, kNormInputGradientTolerance.steps(n), "dx");
  expect_close(d_weight, expected.d_weight, magnitude.d_weight, kNormWeightGradientTolerance.steps(r + n), "d_weight");
  if (with_bias) expect_close(d_bias, expected.d_bias, bias_magnitude, kColumnSumTolerance.steps(r), "d_bias");
}

TEST(LayerNorm, BackwardAgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_backward(dtypes, rows, columns, GradientMode::kWrite, true, dtypes.x);
        check_backward(dtypes, rows, columns, GradientMode::kAccumulate, true, dtypes.x);
        check_backward(dtypes, rows, columns, GradientMode::kWrite, false, dtypes.x);
      }
    }
  });
}

TEST(LayerNorm, LargeShapesAgreeWithTheReferenceWhereverTheyLie) {
  for (const Placement placement : kPlacements) {
    const PlacementScope scope(placement);
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kLargeNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_forward(dtypes, rows, columns, true, 0.0);
        check_backward(dtypes, rows, columns, GradientMode::kAccumulate, true, dtypes.y);
      }
    }
  }
}

TEST(LayerNorm, EachGradientHasItsOwnMode) {
  const Forward f = run_forward(kNormDTypes[0], 20, 24, true, 0.0);
  const Tensor dy = make_tensor(DType::kF32, {20, 24}, random_values(20 * 24, 4));
  const auto gradients = [&](GradientMode mode, GradientMode weight_mode, GradientMode bias_mode) {
    const auto start = [](GradientMode own, Shape shape) {
      return own == GradientMode::kWrite
                 ? make_unwritten(DType::kF32, shape)
                 : make_tensor(DType::kF32, shape, std::vector<double>(static_cast<size_t>(shape.numel()), 1.0));
    };
    const LayerNormBackwardArgs args{.x = f.x,
                                     .dy = dy,
                                     .weight = f.weight,
                                     .mean = f.mean,
                                     .rstd = f.rstd,
                                     .dx = start(mode, {20, 24}),
                                     .d_weight = start(weight_mode, {24}),
                                     .d_bias = start(bias_mode, {24}),
                                     .mode = mode,
                                     .weight_mode = weight_mode,
                                     .bias_mode = bias_mode};
    run(args);
    return std::vector{values_of(args.dx), values_of(args.d_weight), values_of(args.d_bias)};
  };
  constexpr auto kWrite = GradientMode::kWrite, kAccumulate = GradientMode::kAccumulate;
  const auto written = gradients(kWrite, kWrite, kWrite);
  for (size_t which = 0; which < 3; ++which) {
    const auto mixed = gradients(which == 0 ? kAccumulate : kWrite, which == 1 ? kAccumulate : kWrite,
                                 which == 2 ? kAccumulate : kWrite);
    for (size_t k = 0; k < 3; ++k) {
      for (size_t i = 0; i < written[k].size(); ++i) {
        const double expected = written[k][i] + (k == which ? 1.0 : 0.0);
        // The sum has one more rounding, and a compiler may omit the term's.
        ASSERT_NEAR(mixed[k][i], expected, k == which ? 0x1p-24 * (std::abs(expected) + std::abs(written[k][i])) : 0.0);
      }
    }
  }
}

TEST(LayerNorm, TheSameBitsOnEverySchedule) {
  const int64_t rows = device_under_test().large(201);
  for (const NormDTypes& dtypes : kNormDTypes) {
    expect_same_bits_on_every_schedule([&] {
      const Forward f = run_forward(dtypes, rows, 129, true, 0.0);
      const Tensor dy = make_tensor(dtypes.y, {rows, 129}, random_values(rows * 129, 4));
      const Tensor dx = make_unwritten(dtypes.x, {rows, 129});
      const Tensor d_weight = make_unwritten(DType::kF32, {129}), d_bias = make_unwritten(DType::kF32, {129});
      run(LayerNormBackwardArgs{.x = f.x,
                                .dy = dy,
                                .weight = f.weight,
                                .mean = f.mean,
                                .rstd = f.rstd,
                                .dx = dx,
                                .d_weight = d_weight,
                                .d_bias = d_bias});
      return std::vector<Tensor>{f.y, f.mean, f.rstd, dx, d_weight, d_bias};
    });
  }
}

TEST(LayerNorm, ANonFiniteValueMakesItsRowNaNAndNoOther) {
  device_under_test().on_each_variant([] {
    for (const double bad : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL}) {
      std::vector<double> values = random_values(3 * 35, 1);
      values[35 + 34] = bad;
      const Tensor y = make_unwritten(DType::kBF16, {3, 35});
      run(LayerNormForwardArgs{.x = make_tensor(DType::kBF16, {3, 35}, values),
                               .weight = make_tensor(DType::kF32, {35}, random_values(35, 2, 0.5, 1.5)),
                               .y = y,
                               .mean = make_unwritten(DType::kF32, {3}),
                               .rstd = make_unwritten(DType::kF32, {3})});
      const std::vector<double> result = values_of(y);
      for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(std::isnan(result[i]), i / 35 == 1) << i;
    }
  });
}

TEST(LayerNorm, NamesAWrongShape) {
  Forward f = run_forward(kNormDTypes[0], 2, 3, true, 0.0);
  LayerNormForwardArgs args{.x = f.x, .weight = f.weight, .bias = f.bias, .y = f.y, .mean = f.mean, .rstd = f.rstd};
  args.weight = make_unwritten(DType::kF32, {4});
  expect_contract_error([&] { run(args); }, "[layer_norm] weight must have shape (C)=(3), got (4)");
  args.weight = f.weight;
  args.mean = make_unwritten(DType::kF32, {3});
  expect_contract_error([&] { run(args); }, "[layer_norm] mean must have 2 elements, got shape (3)");
}

}  // namespace
}  // namespace mantissa::kernel_test
