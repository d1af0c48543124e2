#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/probe/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

ErrorSums expected_sums(const std::vector<double>& x, const std::vector<double>& reference) {
  ErrorSums sums{.elements = static_cast<int64_t>(x.size())};
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(reference[i])) {
      ++sums.non_finite;
      continue;
    }
    sums.reference_squares += reference[i] * reference[i];
    sums.squares += x[i] * x[i];
    sums.products += x[i] * reference[i];
    sums.error_squares += (x[i] - reference[i]) * (x[i] - reference[i]);
  }
  return sums;
}

// n roundings of 2^-53 on either side, relative to the sum of magnitudes.
void expect_sums(const ErrorSums& actual, const ErrorSums& expected) {
  const double bound = 2.0 * static_cast<double>(expected.elements + 1) * 0x1p-53;
  EXPECT_EQ(actual.elements, expected.elements);
  EXPECT_EQ(actual.non_finite, expected.non_finite);
  EXPECT_NEAR(actual.reference_squares, expected.reference_squares, bound * expected.reference_squares);
  EXPECT_NEAR(actual.squares, expected.squares, bound * expected.squares);
  EXPECT_NEAR(actual.products, expected.products, bound * (expected.squares + expected.reference_squares));
  EXPECT_NEAR(actual.error_squares, expected.error_squares, bound * expected.error_squares);
}

// What was in the record is gone.
ErrorSums compared(const Tensor& x, const Tensor& reference) {
  const Tensor record = make_record(ErrorSums{.elements = 7, .non_finite = 7, .reference_squares = 7.0});
  run(CompareArgs{.x = x, .reference = reference, .record = record, .mode = GradientMode::kWrite});
  return read_record<ErrorSums>(record);
}

TEST(Compare, SumsSquaresProductsAndErrors) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kFloatDTypes) {
        for (const int64_t n : {0, 1, 17, 63, 255, 257, 12288, 16385, 70001}) {
          const Tensor x = make_tensor(dtype, {n}, random_values(n, 1));
          const Tensor reference = make_tensor(DType::kF32, {n}, random_values(n, 2));
          expect_sums(compared(x, reference), expected_sums(values_of(x), values_of(reference)));
        }
      }
    }
  });
}

TEST(Compare, LeavesOutAndCountsWhatIsNotFinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x(5000, 2.0f), reference(5000, 1.0f);
  x[0] = NAN, x[17] = kInf, reference[17] = kInf, reference[4999] = -kInf, x[300] = NAN, reference[301] = NAN;
  const ErrorSums sums = compared(make_elements(x), make_elements(reference));
  EXPECT_EQ(sums.non_finite, 5);
  EXPECT_EQ(sums.error_squares, 4995.0);
  EXPECT_EQ(sums.products, 2.0 * 4995.0);
  EXPECT_TRUE(std::isnan(signal_to_noise_db(sums)));
  EXPECT_TRUE(std::isnan(cosine(sums)));
}

TEST(Compare, AddsToTheRecord) {
  const Tensor record = make_record(ErrorSums());
  const Tensor x = make_elements(std::vector<float>{3.0f, -4.0f}), r = make_elements(std::vector<float>{3.0f, 4.0f});
  for (int i = 0; i < 2; ++i) run(CompareArgs{.x = x, .reference = r, .record = record});
  const ErrorSums sums = read_record<ErrorSums>(record);
  EXPECT_EQ(sums, (ErrorSums{.elements = 4,
                             .non_finite = 0,
                             .reference_squares = 50.0,
                             .squares = 50.0,
                             .products = -14.0,
                             .error_squares = 128.0}));
  EXPECT_DOUBLE_EQ(signal_to_noise_db(sums), 10.0 * std::log10(50.0 / 128.0));
  EXPECT_DOUBLE_EQ(cosine(sums), -14.0 / 50.0);
}

TEST(Compare, EqualValuesHaveNoNoise) {
  const Tensor x = make_tensor(DType::kF32, {333}, random_values(333, 3));
  EXPECT_EQ(signal_to_noise_db(compared(x, x)), std::numeric_limits<double>::infinity());
  EXPECT_NEAR(cosine(compared(x, x)), 1.0, 1e-15);
  const Tensor zero = make_tensor(DType::kF32, {333}, std::vector<double>(333, 0.0));
  EXPECT_TRUE(std::isnan(signal_to_noise_db(compared(zero, zero))));
}

TEST(Compare, TheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(200000);
  const Tensor x = make_tensor(DType::kBF16, {n}, random_values(n, 4));
  const Tensor reference = make_tensor(DType::kF32, {n}, random_values(n, 5));
  expect_same_bits_on_every_schedule([&] {
    const Tensor record = make_record(ErrorSums());
    run(CompareArgs{.x = x, .reference = reference, .record = record});
    return std::vector<Tensor>{record};
  });
}

TEST(Compare, RefusesWhatDoesNotGoTogether) {
  const Tensor x = make_tensor(DType::kF32, {4}, random_values(4, 1)), record = make_record(ErrorSums());
  expect_contract_error(
      [&] {
        run(CompareArgs{.x = x, .reference = make_tensor(DType::kF32, {3}, random_values(3, 1)), .record = record});
      },
      "reference must have 4 elements");
  expect_contract_error(
      [&] {
        run(CompareArgs{.x = x, .reference = make_tensor(DType::kBF16, {4}, random_values(4, 1)), .record = record});
      },
      "reference must be fp32");
}

}  // namespace
}  // namespace mantissa::kernel_test
