// Statistics of gradients.
#include <gtest/gtest.h>

#include "core/kernels/reduction/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

TensorStats read(const Tensor& record) { return fetch_record<TensorStats>(record); }

double sum_squares(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value * value;
  return sum;
}

TEST(TensorStats, SumsSquaresInDouble) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        for (const int64_t n : {0, 1, 3, 17, 63, 65, 129, 16385}) {
          const Tensor x = make_tensor(dtype, {n}, random_values(n, 1));
          const Tensor record = make_record(TensorStats());
          run(TensorStatsArgs{.x = x, .record = record});
          const double expected = sum_squares(values_of(x));
          // Sums of positive terms in double: n roundings of 2^-53 on either side.
          EXPECT_NEAR(read(record).sum_squares, expected, expected * 2.0 * static_cast<double>(n + 1) * 0x1p-53);
          EXPECT_EQ(read(record).first_bad, TensorStats::kNone);
          EXPECT_EQ(read(record).nan_count + read(record).inf_count, 0);
        }
      }
    }
  });
}

// A tensor's address affects how it is read, but not the result.
TEST(TensorStats, TheSameBitsWhereverTheElementsLie) {
  const std::vector<double> values = random_values(20003, 5);
  for (const DType dtype : kFloatDTypes) {
    std::vector<double> sums;
    for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
      const PlacementScope scope(placement);
      const Tensor record = make_record(TensorStats());
      run(TensorStatsArgs{.x = make_tensor(dtype, {20003}, values), .record = record});
      sums.push_back(read(record).sum_squares);
    }
    EXPECT_EQ(sums[0], sums[1]);
  }
}

// More than 1024 blocks of 16384 elements: a GPU gives each block several of them.
TEST(TensorStats, AVeryLargeTensor) {
  const int64_t n = (int64_t{1} << 24) + 16387;
  const auto storage = device_under_test().guarded_storage(static_cast<size_t>(n) * sizeof(BFloat16));
  const Tensor x(storage, DType::kBF16, Shape{n});
  device_under_test().backend().fill(x, 0.5f, device_under_test().stream());
  const Tensor record = make_record(TensorStats());
  run(TensorStatsArgs{.x = x, .record = record});
  EXPECT_EQ(read(record).sum_squares, 0.25 * static_cast<double>(n));
  set_element(x, n - 1, NAN);
  set_element(x, n - 16387, HUGE_VAL);
  run(TensorStatsArgs{.x = x, .record = record});
  EXPECT_EQ(read(record).first_bad, n - 16387);
  EXPECT_EQ(read(record).nan_count, 1);
  EXPECT_EQ(read(record).inf_count, 1);
}

TEST(TensorStats, SquaresOfLargeFp32ValuesDoNotOverflow) {
  device_under_test().on_each_variant([] {
    const Tensor record = make_record(TensorStats());
    run(TensorStatsArgs{.x = make_tensor(DType::kF32, {3}, {3e38, -3e38, 1.0}), .record = record});
    EXPECT_NEAR(read(record).sum_squares, 1.8e77, 1e71);  // fp32 inputs: 3e38 is rounded by up to 2^-24
    EXPECT_EQ(read(record).first_bad, TensorStats::kNone);
  });
}

TEST(TensorStats, FindsEveryNonFiniteValueAndTheFirst) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const size_t where : {0u, 5u, 16383u, 16384u, 40000u}) {
        std::vector<double> values = random_values(40001, 1);
        values[where] = -HUGE_VAL;
        values[40000] = where == 40000 ? -HUGE_VAL : NAN;
        const Tensor record = make_record(TensorStats());
        run(TensorStatsArgs{.x = make_tensor(dtype, {40001}, values), .record = record, .index_offset = 1000});
        EXPECT_EQ(read(record).first_bad, 1000 + static_cast<int64_t>(where));
        EXPECT_EQ(read(record).inf_count, 1);
        EXPECT_EQ(read(record).nan_count, where == 40000 ? 0 : 1);
        EXPECT_FALSE(std::isfinite(read(record).sum_squares));
      }
    }
  });
}

TEST(TensorStats, AddsToTheRecord) {
  const Tensor record = make_record(TensorStats{.first_bad = 50, .nan_count = 2, .inf_count = 3, .sum_squares = 10.0});
  run(TensorStatsArgs{.x = make_tensor(DType::kF32, {2}, {1.0, 2.0}), .record = record, .index_offset = 7});
  EXPECT_EQ(read(record).sum_squares, 15.0);
  EXPECT_EQ(read(record).first_bad, 50);
  run(TensorStatsArgs{.x = make_tensor(DType::kF32, {2}, {NAN, HUGE_VAL}), .record = record, .index_offset = 7});
  EXPECT_EQ(read(record).first_bad, 7);
  EXPECT_EQ(read(record).nan_count, 3);
  EXPECT_EQ(read(record).inf_count, 4);
}

TEST(TensorStats, TheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(70001);
  std::vector<double> values = random_values(n, 1);
  for (const bool bad : {false, true}) {
    if (bad) values[values.size() / 2] = values[values.size() - 10] = NAN;
    const Tensor x = make_tensor(DType::kF32, {n}, values);
    expect_same_bits_on_every_schedule([&] {
      const Tensor record = make_record(TensorStats());
      run(TensorStatsArgs{.x = x, .record = record});
      return std::vector<Tensor>{record};
    });
  }
}

TEST(TensorStats, RefusesARecordOfAnotherSize) {
  expect_contract_error(
      [] {
        run(TensorStatsArgs{.x = make_tensor(DType::kF32, {1}, {1.0}), .record = make_unwritten(DType::kU8, {3})});
      },
      "[tensor_stats] record must hold whole records of 32 bytes, at least one, got 3 bytes");
}

}  // namespace
}  // namespace mantissa::kernel_test
