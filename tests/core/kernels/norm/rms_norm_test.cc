#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/norm/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/norm/norm_cases.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"
#include "tests/reference/rms_norm.h"

namespace mantissa::kernel_test {
namespace rms_norm_test {

using reference::random_values;

constexpr float kEpsilon = 1e-6f;

struct Forward {
  Tensor x, weight, y, rstd;
};

Forward run_forward(const NormDTypes& dtypes, int64_t rows, int64_t columns) {
  Forward f{make_tensor(dtypes.x, {rows, columns}, random_values(rows * columns, 1, -2.0, 3.0)),
            make_tensor(dtypes.weight, {columns}, random_values(columns, 2, 0.5, 1.5)),
            make_unwritten(dtypes.y, {rows, columns}), make_unwritten(DType::kF32, {rows})};
  run(RmsNormForwardArgs{.x = f.x, .weight = f.weight, .y = f.y, .rstd = f.rstd, .epsilon = kEpsilon});
  return f;
}

// Checks y and rstd against those of x.
void check_normed(const Forward& f) {
  const auto expected = reference::rms_norm_forward(values_of(f.x), values_of(f.weight), kEpsilon);
  const double steps = kNormTolerance.steps(static_cast<double>(f.weight.numel()));
  expect_close(f.y, expected.y, absolute(expected.y), steps, "y");
  expect_close(f.rstd, expected.rstd, expected.rstd, steps, "rstd");
}

void check_forward(const NormDTypes& dtypes, int64_t rows, int64_t columns) {
  check_normed(run_forward(dtypes, rows, columns));
}

TEST(RmsNorm, ForwardAgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_forward(dtypes, rows, columns);
      }
    }
  });
}

// More rows of a whole block each than there are blocks: a block's sum for one row is still read when it begins the
// next.
TEST(RmsNorm, ManyLongRows) {
  device_under_test().on_each_variant([] {
    check_forward({DType::kF32, DType::kF32, DType::kF32}, device_under_test().large(601), 16384);
  });
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
  s.norm = {s.sum, make_tensor(dtypes.weight, {columns}, random_values(columns, 2, 0.5, 1.5)),
            make_unwritten(dtypes.y, {rows, columns}), make_unwritten(DType::kF32, {rows})};
  run(RmsNormForwardArgs{.x = s.x,
                         .residual = s.residual,
                         .sum = s.sum,
                         .weight = s.norm.weight,
                         .y = s.norm.y,
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

TEST(RmsNorm, NormalisesASumAsItIsStored) {
  for_each_norm_sum(check_sum);
  check_sum(kNormSumDTypes[3], device_under_test().large(601), 16384);  // as in ManyLongRows
}

// A kernel with a residual gives the bits of one on the ready sum. (tests/core/ops checks that the sum has the bits of
// an addition.)
TEST(RmsNorm, ASumIsNormalisedWithTheBitsOfOneThatIsThere) {
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    for (const NormSumDTypes& dtypes : kNormSumDTypes) {
      if (!has_dtype_of_an_addend(dtypes)) continue;
      for (const auto& [rows, columns] : kLargeNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        const Sum s = run_sum(dtypes, rows, columns);
        const Forward plain{s.sum, s.norm.weight, make_unwritten(dtypes.y, {rows, columns}),
                            make_unwritten(DType::kF32, {rows})};
        run(RmsNormForwardArgs{
            .x = plain.x, .weight = plain.weight, .y = plain.y, .rstd = plain.rstd, .epsilon = kEpsilon});
        EXPECT_EQ(bytes_of(s.norm.y), bytes_of(plain.y));
        EXPECT_EQ(bytes_of(s.norm.rstd), bytes_of(plain.rstd));
      }
    }
  }
}

TEST(RmsNorm, RefusesAResidualWithoutASum) {
  const Forward f = run_forward(kNormDTypes[0], 2, 3);
  expect_contract_error(
      [&] { run(RmsNormForwardArgs{.x = f.x, .residual = f.x, .weight = f.weight, .y = f.y, .rstd = f.rstd}); },
      "[rms_norm] residual and sum must both be given or neither, got residual only");
}

void check_backward(const NormDTypes& dtypes, int64_t rows, int64_t columns, GradientMode mode, DType dx_dtype) {
  const Forward f = run_forward(dtypes, rows, columns);
  const bool accumulate = mode == GradientMode::kAccumulate;
  const Tensor dy = make_tensor(dtypes.y, {rows, columns}, random_values(rows * columns, 4));
  const Tensor dx = accumulate ? make_tensor(dx_dtype, {rows, columns}, random_values(rows * columns, 5))
                               : make_unwritten(dx_dtype, {rows, columns});
  const Tensor d_weight = accumulate ? make_tensor(DType::kF32, {columns}, random_values(columns, 6))
                                     : make_unwritten(DType::kF32, {columns});
  const std::vector<double> dx_before = values_of(dx), d_weight_before = values_of(d_weight);
  run(RmsNormBackwardArgs{.x = f.x,
                          .dy = dy,
                          .weight = f.weight,
                          .rstd = f.rstd,
                          .dx = dx,
                          .d_weight = d_weight,
                          .mode = mode,
                          .weight_mode = mode});

  const std::vector<double> x = values_of(f.x), weight = values_of(f.weight), d = values_of(dy);
  const auto forward = reference::rms_norm_forward(x, weight, kEpsilon);
  auto expected = reference::rms_norm_backward(x, d, weight, kEpsilon);
  auto magnitude = gradient_magnitudes(xhat_magnitude(x, {}, forward.rstd, weight.size()), d, weight, forward.rstd);
  if (accumulate) {
    expected.dx = sum_of(expected.dx, dx_before);
    expected.d_weight = sum_of(expected.d_weight, d_weight_before);
    magnitude.dx = sum_of(magnitude.dx, absolute(dx_before));
    magnitude.d_weight = sum_of(magnitude.d_weight, absolute(d_weight_before));
  }
  const double n = static_cast<double>(columns), r = static_cast<double>(rows);
  expect_close(dx, expected.dx, magnitude.dx, kNormInputGradientTolerance.steps(n), "dx");
  expect_close(d_weight, expected.d_weight, magnitude.d_weight, kNormWeightGradientTolerance.steps(r + n), "d_weight");
}

TEST(RmsNorm, BackwardAgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_backward(dtypes, rows, columns, GradientMode::kWrite, dtypes.x);
        check_backward(dtypes, rows, columns, GradientMode::kAccumulate, dtypes.x);
      }
    }
  });
}

TEST(RmsNorm, LargeShapesAgreeWithTheReferenceWhereverTheyLie) {
  for (const Placement placement : kPlacements) {
    const PlacementScope scope(placement);
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kLargeNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_forward(dtypes, rows, columns);
        check_backward(dtypes, rows, columns, GradientMode::kAccumulate, dtypes.y);
      }
    }
  }
}

TEST(RmsNorm, TheSameBitsOnEverySchedule) {
  const int64_t rows = device_under_test().large(201);
  for (const NormDTypes& dtypes : kNormDTypes) {
    expect_same_bits_on_every_schedule([&] {
      const Forward f = run_forward(dtypes, rows, 129);
      const Tensor dy = make_tensor(dtypes.y, {rows, 129}, random_values(rows * 129, 4));
      const Tensor dx = make_unwritten(dtypes.x, {rows, 129}), d_weight = make_unwritten(DType::kF32, {129});
      run(RmsNormBackwardArgs{.x = f.x, .dy = dy, .weight = f.weight, .rstd = f.rstd, .dx = dx, .d_weight = d_weight});
      return std::vector<Tensor>{f.y, f.rstd, dx, d_weight};
    });
  }
}

TEST(RmsNorm, ANonFiniteValueReachesItsRowAndNoOther) {
  device_under_test().on_each_variant([] {
    for (const double bad : {static_cast<double>(NAN), HUGE_VAL}) {
      std::vector<double> values = random_values(3 * 35, 1);
      values[35 + 34] = bad;
      const Tensor y = make_unwritten(DType::kF16, {3, 35});
      run(RmsNormForwardArgs{.x = make_tensor(DType::kF16, {3, 35}, values),
                             .weight = make_tensor(DType::kF32, {35}, random_values(35, 2, 0.5, 1.5)),
                             .y = y,
                             .rstd = make_unwritten(DType::kF32, {3})});
      const std::vector<double> result = values_of(y);
      EXPECT_TRUE(std::isnan(result[35 + 34]));
      for (size_t i = 0; i < result.size(); ++i) EXPECT_TRUE(i / 35 == 1 || std::isfinite(result[i])) << i;
    }
  });
}

TEST(RmsNorm, NamesAWrongShape) {
  const Forward f = run_forward(kNormDTypes[0], 2, 3);
  expect_contract_error(
      [&] { run(RmsNormForwardArgs{.x = f.x, .weight = make_unwritten(DType::kF32, {4}), .y = f.y, .rstd = f.rstd}); },
      "[rms_norm] weight must have shape (C)=(3), got (4)");
}

}  // namespace rms_norm_test
}  // namespace mantissa::kernel_test
