#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"
#include "tests/reference/swiglu.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;

void check(DType dtype, int64_t rows, int64_t features) {
  const Tensor x = make_tensor(dtype, {rows, 2 * features}, random_values(rows * 2 * features, 1, -20.0, 20.0));
  const Tensor dy = make_tensor(dtype, {rows, features}, random_values(rows * features, 2));
  const Tensor y = make_unwritten(dtype, {rows, features}), dx = make_unwritten(dtype, {rows, 2 * features});
  run(SwigluForwardArgs{.x = x, .y = y});
  run(SwigluBackwardArgs{.x = x, .dy = dy, .dx = dx});
  const size_t f = static_cast<size_t>(features);
  const std::vector<double> v = values_of(x), d = values_of(dy);
  const std::vector<double> expected = reference::swiglu_forward(v, f),
                            d_expected = reference::swiglu_backward(v, d, f);
  std::vector<double> magnitude(expected.size()), d_magnitude(d_expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t gate = i / f * 2 * f + i % f;
    const double g = v[gate], s = reference::sigmoid(g), condition = 1.0 + std::abs(g);  // e^-|g| of a rounded argument
    magnitude[i] = std::abs(expected[i]) * condition;
    d_magnitude[gate] = std::abs(d[i] * v[gate + f]) * (s + std::abs(g) * s * (1.0 - s)) * condition;
    d_magnitude[gate + f] = std::abs(d_expected[gate + f]) * condition;
  }
  expect_close(y, expected, magnitude, kActivationTolerance.steps(), "y");
  expect_close(dx, d_expected, d_magnitude, kActivationGradientTolerance.steps(), "dx");
}

TEST(Swiglu, AgreesWithTheReferenceAtOddSizes) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const int64_t features : {1, 3, 17, 63, 65, 129}) {
        for (const int64_t rows : {1, 3, 5}) check(dtype, rows, features);
      }
    }
  });
}

// In vectors; across one block; more rows than the emulated GPU's grid has.
TEST(Swiglu, AgreesWithTheReferenceAtOtherShapes) {
  for (const DType dtype : kFloatDTypes) {
    for (const int64_t features : {8, 64, 2056}) check(dtype, 3, features);
    check(dtype, 3001, 3);
    check(dtype, 1203, 64);
  }
}

TEST(Swiglu, TheSameBitsOnEverySchedule) {
  const int64_t rows = device_under_test().large(201);
  const std::vector<double> x_values = random_values(rows * 258, 1, -5.0, 5.0);
  const std::vector<double> dy_values = random_values(rows * 129, 2);
  for (const DType dtype : kFloatDTypes) {
    const Tensor x = make_tensor(dtype, {rows, 258}, x_values), dy = make_tensor(dtype, {rows, 129}, dy_values);
    expect_same_bits_on_every_schedule([&] {
      const Tensor y = make_unwritten(dtype, {rows, 129}), dx = make_unwritten(dtype, {rows, 258});
      run(SwigluForwardArgs{.x = x, .y = y});
      run(SwigluBackwardArgs{.x = x, .dy = dy, .dx = dx});
      return std::vector<Tensor>{y, dx};
    });
  }
}

TEST(Swiglu, NonFiniteValuesPropagate) {
  device_under_test().on_each_variant([] {
    for (const double bad : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL}) {
      for (const size_t where : {0u, 1u}) {
        std::vector<double> values = {0.5, -0.5};
        values[where] = bad;
        const Tensor x = make_tensor(DType::kBF16, {1, 2}, values), dy = make_tensor(DType::kBF16, {1, 1}, {1.0});
        const Tensor y = make_unwritten(DType::kBF16, {1, 1}), dx = make_unwritten(DType::kBF16, {1, 2});
        run(SwigluForwardArgs{.x = x, .y = y});
        run(SwigluBackwardArgs{.x = x, .dy = dy, .dx = dx});
        EXPECT_FALSE(std::isfinite(values_of(y)[0])) << bad << " at " << where;
        EXPECT_FALSE(std::isfinite(values_of(dx)[0])) << bad << " at " << where;
      }
    }
  });
}

TEST(Swiglu, NamesAWrongShape) {
  const Tensor x = make_tensor(DType::kF32, {2, 4}, random_values(8, 1));
  expect_contract_error(
      [&] {
        run(SwigluForwardArgs{.x = x, .y = make_unwritten(DType::kF32, {2, 4})});
      },
      "[swiglu] x must have shape (R, 2*F) for y (R, F)=(2, 4), got (2, 4)");
}

}  // namespace
}  // namespace mantissa::kernel_test
