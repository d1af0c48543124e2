// Column sums, and sums of ranks' contributions.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/kernels/check_args.h"
#include "core/kernels/elementwise/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/bias.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

void check(DType dtype, int64_t rows, int64_t columns, GradientMode mode) {
  SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
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

// Sums that a GPU divides: many chunks of rows, several tiles of columns, with and without vector accesses.
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

constexpr float kScale = 0.2f;

void check_fp32_sum(DType from, DType to, int64_t ranks, int64_t n) {
  const Tensor contributions = make_tensor(from, {ranks, n}, random_values(ranks * n, 1));
  const Tensor out = make_unwritten(to, {n});
  run(SumContributionsArgs{.contributions = contributions, .out = out, .scale = kScale});
  const std::vector<double> v = values_of(contributions);
  std::vector<double> expected(static_cast<size_t>(n)), magnitude(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) {
    expected[i % static_cast<size_t>(n)] += static_cast<double>(kScale) * v[i];
    magnitude[i % static_cast<size_t>(n)] += static_cast<double>(kScale) * std::abs(v[i]);
  }
  expect_close(out, expected, magnitude, kSumContributionsTolerance.steps(static_cast<double>(ranks)), "sum");
}

TEST(SumContributions, Fp32SumAgreesWithDoubleForAllDTypes) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType from : kFloatDTypes) {
        for (const DType to : kFloatDTypes) {
          for (const int64_t ranks : {1, 2, 5}) {
            for (const int64_t n : {1, 3, 17, 65, 129, 136}) check_fp32_sum(from, to, ranks, n);
          }
        }
      }
    }
  });
}

// Bit for bit: the sum is rounded to the contributions' dtype after every addition, of three rows in their order.
TEST(SumContributions, NarrowSumRoundsAfterEveryAddition) {
  device_under_test().on_each_variant([] {
    for (const DType from : kFloatDTypes) {
      const int64_t ranks = 3, n = 67;  // not a multiple of a vector, so only some ranks' contributions are aligned
      const Tensor contributions = make_tensor(from, {ranks, n}, random_values(ranks * n, 2, 0.5, 1.0));
      const Tensor out = make_unwritten(DType::kF32, {n});
      run(SumContributionsArgs{.contributions = contributions, .out = out, .accumulate = from, .scale = kScale});
      dispatch(from, [&]<typename T>() {
        const std::vector<T> terms = elements_of<T>(contributions);
        const std::vector<float> actual = elements_of<float>(out);
        for (size_t i = 0; i < actual.size(); ++i) {
          T sum = terms[i];
          for (size_t j = i + actual.size(); j < terms.size(); j += actual.size()) {
            sum = from_float<T>(to_float(sum) + to_float(terms[j]));
          }
          ASSERT_EQ(actual[i], to_float(sum) * kScale) << i;
        }
      });
    }
  });
}

// Strided rows give the same bits as contiguous ones, and rows rounded on the fly the same bits as cast() does. This
// includes values that overflow, are subnormal, or are NaN after rounding.
TEST(SumContributions, RowsThatLieApartAndRoundOnTheWayGiveTheSameBits) {
  constexpr int64_t kRanks = 3;
  device_under_test().on_each_variant([] {
    for (const int64_t n : {1, 17, 64, 16399}) {
      for (const int64_t gap : {0, 1, 8}) {
        const int64_t stride = n + gap;
        std::vector<double> values = random_values(kRanks * stride, 5);
        for (size_t i = 0; i < values.size(); i += 3) values[i] *= 0x1p-15;  // subnormal in fp16
        values[static_cast<size_t>(n / 2)] = 1e5;                            // beyond fp16's range
        values[static_cast<size_t>(stride)] = NAN;
        const Tensor apart = make_tensor(DType::kF32, {kRanks * stride}, values);
        const Tensor rows = apart.slice(0, kRanks * n).view({kRanks, n});
        for (const DType wire : kFloatDTypes) {
          const float before = wire == DType::kF32 ? 1.0f : 4.0f;
          const Tensor sent = make_unwritten(wire, {kRanks, n});
          for (int64_t rank = 0; rank < kRanks; ++rank) {
            run(CastArgs{.src = apart.slice(rank * stride, n), .dst = sent.slice(rank * n, n), .scale = before});
          }
          for (const DType accumulate : {DType::kF32, wire}) {
            for (const DType to : kFloatDTypes) {
              const Tensor expected = make_unwritten(to, {n}), actual = make_unwritten(to, {n});
              run(SumContributionsArgs{
                  .contributions = sent, .out = expected, .accumulate = accumulate, .scale = kScale});
              run(SumContributionsArgs{.contributions = rows,
                                       .out = actual,
                                       .row_stride = stride,
                                       .rounded_to = wire,
                                       .scale_before = before,
                                       .accumulate = accumulate,
                                       .scale = kScale});
              EXPECT_EQ(bytes_of(actual), bytes_of(expected))
                  << n << " " << gap << " " << name(wire) << " " << name(to);
            }
          }
        }
      }
    }
  });
}

TEST(SumContributions, RefusesWhatDoesNotGoTogether) {
  const Tensor wide = make_tensor(DType::kF32, {2, 2}, {1, 2, 3, 4}), out = make_unwritten(DType::kF32, {2});
  const Tensor narrow = make_tensor(DType::kBF16, {2, 2}, {1, 2, 3, 4});
  const auto expect_refused = [](const SumContributionsArgs& args, const std::string& message) {
    expect_contract_error([&] { run(args); }, message);
  };
  expect_refused({.contributions = wide, .out = out, .row_stride = 1},
                 "[sum_contributions] row_stride must be 0 or at least n=2, got 1");
  expect_refused({.contributions = narrow, .out = out, .rounded_to = DType::kF16},
                 "[sum_contributions] contributions of fp32 can be rounded to bf16 or fp16, got bf16 to fp16");
  expect_refused({.contributions = wide, .out = out, .rounded_to = DType::kI32},
                 "[sum_contributions] contributions of fp32 can be rounded to bf16 or fp16, got fp32 to i32");
  expect_refused({.contributions = wide, .out = out, .scale_before = 2.0f},
                 "[sum_contributions] scale_before=2 without rounded_to, which it goes with");
}

TEST(SumContributions, Fp32SumKeepsWhatANarrowOneLoses) {
  // 1 + 255 times 2^-9, of which two are a unit of bf16's last place at 1, halved. The narrow sum loses the addend of
  // the first pair and the sum of the second, by ties to even. Later nodes are whole units: 4, 8, ... 128 times 2^-9.
  std::vector<double> values(256, 0x1p-9);
  values[0] = 1.0;
  const Tensor contributions = make_tensor(DType::kBF16, {256, 1}, values);
  const Tensor wide = make_unwritten(DType::kF32, {1}), narrow = make_unwritten(DType::kF32, {1});
  run(SumContributionsArgs{.contributions = contributions, .out = wide});
  run(SumContributionsArgs{.contributions = contributions, .out = narrow, .accumulate = DType::kBF16});
  EXPECT_EQ(values_of(wide)[0], 1.0 + 255.0 / 512.0);
  EXPECT_EQ(values_of(narrow)[0], 1.0 + 252.0 / 512.0);
}

TEST(SumContributions, TheSameBitsOnEveryScheduleAndNonFiniteValuesPropagate) {
  const int64_t n = device_under_test().large(40001);
  std::vector<double> values = random_values(3 * n, 3);
  values[static_cast<size_t>(n + 7)] = NAN;
  values[8] = HUGE_VAL;
  for (const DType dtype : kFloatDTypes) {
    const Tensor contributions = make_tensor(dtype, {3, n}, values);
    for (const DType accumulate : {DType::kF32, dtype}) {
      expect_same_bits_on_every_schedule([&] {
        const Tensor out = make_unwritten(dtype, {n}), record = make_record(TensorStats());
        run(SumContributionsArgs{
            .contributions = contributions, .out = out, .accumulate = accumulate, .scale = kScale, .record = record});
        EXPECT_TRUE(std::isnan(values_of(out)[7]));
        EXPECT_EQ(values_of(out)[8], HUGE_VAL);
        return std::vector<Tensor>{out, record};
      });
    }
  }
}

// The definition, for each element.
TensorStats stats_of(const Tensor& tensor, int64_t index_offset) {
  TensorStats stats;
  const std::vector<double> values = values_of(tensor);
  for (size_t i = 0; i < values.size(); ++i) {
    stats.sum_squares += values[i] * values[i];
    if (std::isfinite(values[i])) continue;
    stats.first_bad = std::min(stats.first_bad, index_offset + static_cast<int64_t>(i));
    ++(std::isnan(values[i]) ? stats.nan_count : stats.inf_count);
  }
  return stats;
}

// The record includes stored values, not the unrounded sums, and adds to its earlier contents.
void check_record(DType from, DType to, DType accumulate, const std::vector<double>& values, int64_t ranks) {
  const auto n = static_cast<int64_t>(values.size()) / ranks;
  constexpr int64_t kOffset = 1000;
  const TensorStats before{.first_bad = kOffset + n, .nan_count = 3, .inf_count = 4, .sum_squares = 0.0};
  const Tensor record = make_record(before), same = make_record(before), out = make_unwritten(to, {n});
  run(SumContributionsArgs{.contributions = make_tensor(from, {ranks, n}, values),
                           .out = out,
                           .accumulate = accumulate,
                           .scale = kScale,
                           .record = record,
                           .index_offset = kOffset});
  run(TensorStatsArgs{.x = out, .record = same, .index_offset = kOffset});
  EXPECT_EQ(bytes_of(record), bytes_of(same)) << "not what tensor_stats finds";
  const auto actual = fetch_record<TensorStats>(record);
  const TensorStats expected = stats_of(out, kOffset);
  EXPECT_EQ(actual.first_bad, std::min(expected.first_bad, kOffset + n));
  EXPECT_EQ(actual.nan_count, 3 + expected.nan_count);
  EXPECT_EQ(actual.inf_count, 4 + expected.inf_count);
  if (std::isfinite(expected.sum_squares)) {
    // Sums of positive terms in double: n roundings of 2^-53 on either side.
    EXPECT_NEAR(actual.sum_squares, expected.sum_squares,
                expected.sum_squares * 2.0 * static_cast<double>(n) * 0x1p-53);
  } else {
    EXPECT_FALSE(std::isfinite(actual.sum_squares));
  }
}

TEST(SumContributions, TheRecordIsThatOfTensorStats) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const auto& [from, to, accumulate] :
           {std::tuple{DType::kF32, DType::kF32, DType::kF32}, std::tuple{DType::kBF16, DType::kF32, DType::kF32},
            std::tuple{DType::kBF16, DType::kBF16, DType::kBF16}, std::tuple{DType::kF16, DType::kF16, DType::kF32}}) {
        for (const int64_t n : {1, 3, 65, 16384, 16399}) {
          std::vector<double> values = random_values(2 * n, 4);
          check_record(from, to, accumulate, values, 2);
          values[static_cast<size_t>(n / 2)] = HUGE_VAL;
          check_record(from, to, accumulate, values, 2);
          values[static_cast<size_t>(2 * n - 1)] = NAN;
          check_record(from, to, accumulate, values, 2);
        }
      }
    }
  });
}

// A value that overflows when stored counts as an overflow, whatever the sum was.
TEST(SumContributions, TheRecordIsOfWhatIsStored) {
  const Tensor contributions = make_tensor(DType::kF16, {2, 2}, {60000.0, 1.0, 60000.0, 2.0});
  const auto record_for = [&](DType to, float scale) {
    const Tensor record = make_record(TensorStats());
    run(SumContributionsArgs{
        .contributions = contributions, .out = make_unwritten(to, {2}), .scale = scale, .record = record});
    return fetch_record<TensorStats>(record);
  };
  EXPECT_EQ(record_for(DType::kF32, 1.0f), (TensorStats{.sum_squares = 120000.0 * 120000.0 + 9.0}));
  EXPECT_EQ(record_for(DType::kF16, 0.5f), (TensorStats{.sum_squares = 60000.0 * 60000.0 + 2.25}));
  EXPECT_EQ(record_for(DType::kF16, 1.0f), (TensorStats{.first_bad = 0, .inf_count = 1, .sum_squares = HUGE_VAL}));
}

TEST(SumContributions, RefusesARecordOfAnotherSize) {
  expect_contract_error(
      [] {
        run(SumContributionsArgs{.contributions = make_tensor(DType::kF32, {1, 1}, {1.0}),
                                 .out = make_unwritten(DType::kF32, {1}),
                                 .record = make_unwritten(DType::kU8, {3})});
      },
      "[sum_contributions] record must hold whole records of 32 bytes, at least one, got 3 bytes");
}

TEST(SumContributions, RefusesAForeignAccumulationDType) {
  const Tensor contributions = make_tensor(DType::kBF16, {1, 2}, {1, 2});
  expect_contract_error(
      [&] {
        run(SumContributionsArgs{
            .contributions = contributions, .out = make_unwritten(DType::kF32, {2}), .accumulate = DType::kF16});
      },
      "[sum_contributions] accumulate must be fp32 or the contributions' dtype bf16, got fp16");
}

}  // namespace
}  // namespace mantissa::kernel_test
