#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/kernels/activation/gelu_terms.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/gelu.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

void check(DType dtype, GeluForm form, const std::vector<double>& values) {
  const int64_t n = static_cast<int64_t>(values.size());
  const Tensor x = make_tensor(dtype, {n}, values), dy = make_tensor(dtype, {n}, random_values(n, 2, 0.5, 2.0));
  const Tensor y = make_unwritten(dtype, {n}), dx = make_unwritten(dtype, {n});
  run(GeluForwardArgs{.x = x, .y = y, .form = form});
  run(GeluBackwardArgs{.x = x, .dy = dy, .dx = dx, .form = form});
  const std::vector<double> v = values_of(x), d = values_of(dy);
  std::vector<double> expected(v.size()), magnitude(v.size()), d_expected(v.size()), d_magnitude(v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    expected[i] = gelu_value(v[i], form);
    ASSERT_NEAR(expected[i], reference::gelu(v[i], form), 1e-14);
    d_expected[i] = d[i] * reference::gelu_derivative(v[i], form);
    magnitude[i] = std::abs(expected[i]) * gelu_tail_condition(v[i], form);
    // The reference's derivative of the tanh form cancels in the lower tail: 1e-15 absolute, far below one fp32 step of
    // 1e-7.
    d_magnitude[i] = std::abs(d[i]) * gelu_derivative_terms(v[i], form) * gelu_tail_condition(v[i], form) + 1e-7;
  }
  expect_close(y, expected, magnitude, kActivationTolerance.steps(), "y");
  expect_close(dx, d_expected, d_magnitude, kActivationGradientTolerance.steps(), "dx");
}

TEST(Gelu, AgreesWithTheReferenceAtOddSizes) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const GeluForm form : kGeluForms) {
        for (const int64_t n : {1, 3, 17, 63, 65, 129}) check(dtype, form, random_values(n, 1, -4.0, 4.0));
      }
    }
  });
}

// Element by element and in vectors; the larger ones go round in the emulated GPU's grid.
TEST(Gelu, AgreesWithTheReferenceAtSizesOfWholeVectors) {
  for (const DType dtype : kFloatDTypes) {
    for (const GeluForm form : kGeluForms) {
      for (const int64_t n : {8, 64, 9001, 70000}) check(dtype, form, random_values(n, 1, -4.0, 4.0));
    }
  }
}

TEST(Gelu, KeepsRelativeAccuracyInTheTails) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const GeluForm form : kGeluForms) check(dtype, form, random_values(4001, 3, -12.0, 12.0));
    }
  });
}

TEST(Gelu, InPlaceBackwardAndTheSameBitsOnEverySchedule) {
  const int64_t n = device_under_test().large(50001);
  const std::vector<double> x_values = random_values(n, 1, -5.0, 5.0), dy_values = random_values(n, 2);
  for (const DType dtype : kFloatDTypes) {
    for (const GeluForm form : kGeluForms) {
      const auto compute = [&](bool in_place) {
        const Tensor x = make_tensor(dtype, {n}, x_values), dy = make_tensor(dtype, {n}, dy_values);
        const Tensor y = make_unwritten(dtype, {n}), dx = in_place ? dy : make_unwritten(dtype, {n});
        run(GeluForwardArgs{.x = x, .y = y, .form = form});
        run(GeluBackwardArgs{.x = x, .dy = dy, .dx = dx, .form = form});
        return std::vector<Tensor>{y, dx};
      };
      expect_same_bits_on_every_schedule([&] { return compute(false); });
      EXPECT_EQ(bytes_of(compute(true)[1]), bytes_of(compute(false)[1]));
    }
  }
}

TEST(Gelu, NonFiniteAndHugeValues) {
  device_under_test().on_each_variant([] {
    for (const GeluForm form : kGeluForms) {
      const Tensor x = make_tensor(DType::kF32, {5}, {NAN, HUGE_VAL, -HUGE_VAL, 3e38, -3e38});
      const Tensor dy = make_tensor(DType::kF32, {5}, {1, 1, 1, 1, 1});
      const Tensor y = make_unwritten(DType::kF32, {5}), dx = make_unwritten(DType::kF32, {5});
      run(GeluForwardArgs{.x = x, .y = y, .form = form});
      run(GeluBackwardArgs{.x = x, .dy = dy, .dx = dx, .form = form});
      const std::vector<double> value = values_of(y), derivative = values_of(dx);
      EXPECT_TRUE(std::isnan(value[0]) && std::isnan(derivative[0]));
      EXPECT_EQ(value[1], HUGE_VAL);
      EXPECT_TRUE(std::isnan(derivative[1]));
      EXPECT_TRUE(std::isnan(value[2]) && std::isnan(derivative[2]));
      EXPECT_EQ(value[3], values_of(x)[3]);
      EXPECT_EQ(derivative[3], 1.0);
      EXPECT_EQ(value[4], 0.0);
      EXPECT_EQ(derivative[4], 0.0);
    }
  });
}

TEST(Gelu, RefusesMixedDTypes) {
  const Tensor x = make_tensor(DType::kF32, {2}, {1, 2});
  expect_contract_error([&] { run(GeluForwardArgs{.x = x, .y = make_unwritten(DType::kBF16, {2})}); },
                        "[gelu] y must be fp32, got bf16");
}

}  // namespace
}  // namespace mantissa::kernel_test
