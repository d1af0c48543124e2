#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/bias.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

void check(DType dtype, int64_t rows, int64_t columns, GradientMode mode) {
  SCOPED_TRACE(testing::Message() << rows << " x " << columns);
  const bool accumulate = mode == GradientMode::kAccumulate;
  const Tensor x = make_tensor(dtype, {rows, columns}, random_values(rows * columns, 1));
  const std::vector<double> before = values_of(make_tensor(DType::kF32, {columns}, random_values(columns, 2)));
  const Tensor out = accumulate ? make_tensor(DType::kF32, {columns}, before) : make_unwritten(DType::kF32, {columns});
  run(ColumnSumArgs{.x = x, .out = out, .mode = mode});
  const size_t n = static_cast<size_t>(columns);
  std::vector<double> expected = reference::column_sum(values_of(x), n);
  std::vector<double> magnitude = reference::column_sum(absolute(values_of(x)), n);
  if (accumulate) {
    expected = sum_of(expected, before);
    magnitude = sum_of(magnitude, absolute(before));
  }
  expect_close(out, expected, magnitude, kColumnSumTolerance.steps(static_cast<double>(rows)), "sum");
}

TEST(ColumnSum, AgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const int64_t rows : {0, 1, 3, 17, 63, 129}) {
        for (const int64_t columns : {1, 3, 17, 65}) {
          check(dtype, rows, columns, GradientMode::kWrite);
          check(dtype, rows, columns, GradientMode::kAccumulate);
        }
      }
    }
  });
}

// What a GPU divides: many chunks of rows, several tiles of columns; with vector accesses and without.
TEST(ColumnSum, LargeShapesAgreeWithTheReferenceWhereverTheyLie) {
  for (const Placement placement : kPlacements) {
    const PlacementScope scope(placement);
    for (const DType dtype : kFloatDTypes) {
      check(dtype, 1100, 8, GradientMode::kAccumulate);
      check(dtype, 70, 264, GradientMode::kWrite);
      check(dtype, 70, 263, GradientMode::kWrite);
    }
  }
}

TEST(ColumnSum, TheSameBitsOnEverySchedule) {
  const int64_t rows = device_under_test().large(333);
  const std::vector<double> values = random_values(rows * 129, 3);
  for (const DType dtype : kFloatDTypes) {
    const Tensor x = make_tensor(dtype, {rows, 129}, values);
    expect_same_bits_on_every_schedule([&] {
      const Tensor out = make_unwritten(DType::kF32, {129});
      run(ColumnSumArgs{.x = x, .out = out});
      return std::vector<Tensor>{out};
    });
  }
}

TEST(ColumnSum, NaNStaysInItsColumn) {
  device_under_test().on_each_variant([] {
    std::vector<double> values = random_values(21 * 19, 4);
    values[5 * 19 + 18] = NAN;
    const Tensor out = make_unwritten(DType::kF32, {19});
    run(ColumnSumArgs{.x = make_tensor(DType::kBF16, {21, 19}, values), .out = out});
    const std::vector<double> sums = values_of(out);
    for (size_t c = 0; c < 19; ++c) EXPECT_EQ(std::isnan(sums[c]), c == 18) << c;
  });
}

TEST(ColumnSum, RefusesAnOutputOfAnotherShape) {
  const Tensor x = make_tensor(DType::kF32, {2, 3}, random_values(6, 1));
  expect_contract_error([&] { run(ColumnSumArgs{.x = x, .out = make_unwritten(DType::kF32, {2})}); },
                        "[column_sum] out must have shape (C)=(3), got (2)");
  expect_contract_error([&] { run(ColumnSumArgs{.x = x, .out = make_unwritten(DType::kBF16, {3})}); },
                        "[column_sum] out must be fp32, got bf16");
}

}  // namespace
}  // namespace mantissa::kernel_test
