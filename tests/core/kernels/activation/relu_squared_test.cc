#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"
#include "tests/reference/relu_squared.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

std::vector<double> magnitudes(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

void check_relu_squared(DType dtype, const std::vector<double>& values) {
  const int64_t n = static_cast<int64_t>(values.size());
  const Tensor x = make_tensor(dtype, {n}, values), dy = make_tensor(dtype, {n}, random_values(n, 2));
  const Tensor y = make_unwritten(dtype, {n}), dx = make_unwritten(dtype, {n});
  run(ReluSquaredForwardArgs{.x = x, .y = y});
  run(ReluSquaredBackwardArgs{.x = x, .dy = dy, .dx = dx});
  const std::vector<double> expected = reference::relu_squared_forward(values_of(x));
  const std::vector<double> d_expected = reference::relu_squared_backward(values_of(x), values_of(dy));
  expect_close(y, expected, magnitudes(expected), kAddTolerance.steps(), "y");  // one operation, one rounding
  expect_close(dx, d_expected, magnitudes(d_expected), kAddTolerance.steps(), "dx");
}

TEST(ReluSquared, AgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const int64_t n : {1, 3, 17, 63, 64, 65, 129}) check_relu_squared(dtype, random_values(n, 1, -4.0, 4.0));
    }
  });
  for (const DType dtype : kFloatDTypes) {
    for (const int64_t n : {9001, 70000}) check_relu_squared(dtype, random_values(n, 1, -4.0, 4.0));
  }
}

TEST(ReluSquared, InPlaceBackwardAndTheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(50001);
  const std::vector<double> x_values = random_values(n, 1, -5.0, 5.0), dy_values = random_values(n, 2);
  for (const DType dtype : kFloatDTypes) {
    const auto compute = [&](bool in_place) {
      const Tensor x = make_tensor(dtype, {n}, x_values), dy = make_tensor(dtype, {n}, dy_values);
      const Tensor y = make_unwritten(dtype, {n}), dx = in_place ? dy : make_unwritten(dtype, {n});
      run(ReluSquaredForwardArgs{.x = x, .y = y});
      run(ReluSquaredBackwardArgs{.x = x, .dy = dy, .dx = dx});
      return std::vector<Tensor>{y, dx};
    };
    expect_same_bits_on_every_schedule([&] { return compute(false); });
    EXPECT_EQ(bytes_of(compute(true)[1]), bytes_of(compute(false)[1]));
  }
}

TEST(ReluSquared, NonFiniteValuesShowAndLargeOnesOverflow) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      const double large = dtype == DType::kF16 ? 300.0 : 3e19;  // its square overflows
      const Tensor x = make_tensor(dtype, {6}, {NAN, HUGE_VAL, -HUGE_VAL, large, -1.0, 1.0});
      const Tensor dy = make_tensor(dtype, {6}, {1, 1, 1, 1, HUGE_VAL, NAN});
      const Tensor y = make_unwritten(dtype, {6}), dx = make_unwritten(dtype, {6});
      run(ReluSquaredForwardArgs{.x = x, .y = y});
      run(ReluSquaredBackwardArgs{.x = x, .dy = dy, .dx = dx});
      const std::vector<double> value = values_of(y), derivative = values_of(dx);
      EXPECT_TRUE(std::isnan(value[0]) && std::isnan(derivative[0]));
      EXPECT_EQ(value[1], HUGE_VAL);
      EXPECT_EQ(derivative[1], HUGE_VAL);
      EXPECT_EQ(value[2], 0.0);
      EXPECT_EQ(derivative[2], 0.0);
      EXPECT_EQ(value[3], HUGE_VAL);
      EXPECT_EQ(derivative[3], 2.0 * values_of(x)[3]);
      EXPECT_TRUE(std::isnan(derivative[4]) && std::isnan(derivative[5]));
    }
  });
}

TEST(ReluSquared, RefusesOtherDTypesAndSizes) {
  const Tensor x = make_tensor(DType::kF32, {2}, {1, 2});
  expect_contract_error([&] { run(ReluSquaredForwardArgs{.x = x, .y = make_unwritten(DType::kBF16, {2})}); },
                        "[relu_squared] y must be fp32, got bf16");
  expect_contract_error([&] { run(ReluSquaredBackwardArgs{.x = x, .dy = make_unwritten(DType::kF32, {3}), .dx = x}); },
                        "[relu_squared backward] dy must have 2 elements");
}

}  // namespace
}  // namespace mantissa::kernel_test
