// Activations and their gradients: gelu, SwiGLU and squared ReLU.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/kernels/activation/gelu_terms.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/gelu.h"
#include "tests/reference/random_values.h"
#include "tests/reference/relu_squared.h"
#include "tests/reference/swiglu.h"

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
    // The reference's derivative of the tanh form cancels in the lower tail: an absolute error of 1e-15, far below an
    // fp32 step of 1e-7.
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

// Single elements and vectors; larger sizes exceed one pass of the emulated GPU's grid.
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

// Vectors, rows that span blocks, and more rows than the emulated GPU's grid has.
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
  expect_close(y, expected, magnitudes(expected), kAddTolerance.steps(), "y");  // a single rounding
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
