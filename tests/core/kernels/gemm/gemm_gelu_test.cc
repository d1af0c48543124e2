// Products with gelu or its derivative: GemmArgs::activation.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/core/kernels/activation/gelu_terms.h"
#include "tests/core/kernels/gemm/gemm_problem.h"
#include "tests/core/kernels/run_kernel.h"

namespace mantissa::kernel_test {
namespace gemm_gelu_test {

using reference::MatmulShape;

// Odd shapes, and shapes with cuBLASLt epilogues: columns in multiples of 8.
constexpr MatmulShape kShapes[] = {
    {1, 1, 1}, {3, 17, 5}, {17, 65, 33}, {1, 8, 3}, {5, 16, 17}, {33, 72, 40}, {64, 128, 64},
};

bool may_be_fused(DType dtype, GeluForm form) {
  return device_under_test().fuses_gelu() && dtype != DType::kF32 && form == GeluForm::kTanh;
}

// The error that GemmArgs allows for tanh in a fused product.
double tanh_error(DType dtype, GeluForm form) { return may_be_fused(dtype, form) ? 0x1p-11 : 0.0; }

// Its effect on gelu = x/2 (1 + t), whose argument may be unrounded, too; |gelu'| < 1.13.
double value_extra(DType dtype, GeluForm form, double x) {
  const double error = tanh_error(dtype, form);
  if (error == 0.0) return 0.0;
  const double rounding = operand_rounding(dtype).error(std::abs(x));
  return 1.13 * rounding + 0.5 * (std::abs(x) + rounding) * error;
}

// Its effect on gelu' = (1 + t)/2 + x/2 (1 - t^2) u'.
double derivative_extra(DType dtype, GeluForm form, double x) {
  const double error = tanh_error(dtype, form);
  const double slope = std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
  return 0.5 * error + 0.5 * std::abs(x) * slope * (2.0 * error + error * error);
}

GemmArgs value_args(const Problem& problem, DType dtype, DType c_dtype, GeluForm form, const Tensor& bias) {
  GemmArgs args = problem.args(dtype);
  args.c = make_unwritten(c_dtype, args.c.shape());
  args.aux = make_unwritten(c_dtype, args.c.shape());
  args.bias = bias;
  args.activation = GemmActivation::kGelu;
  args.form = form;
  return args;
}

void check_value(const GemmWay& way, const Problem& problem, DType c_dtype, GeluForm form, bool with_bias) {
  const auto n = static_cast<int64_t>(problem.shape.n);
  const std::vector<double> bias = short_values(problem.shape.n, 3);
  const GemmArgs args =
      value_args(problem, way.dtype, c_dtype, form, with_bias ? make_tensor(DType::kF32, {n}, bias) : Tensor());
  way.gemm(args);
  std::vector<double> sum = problem.product, magnitude = problem.magnitude;
  for (size_t i = 0; with_bias && i < sum.size(); ++i) {
    sum[i] += bias[i % problem.shape.n];
    magnitude[i] += 1.0;
  }
  expect_close(args.aux, sum, magnitude, problem.steps(), problem.name(way.name + ": aux"),
               problem.rounding_before_bias(c_dtype));
  const std::vector<double> inputs = values_of(args.aux);
  std::vector<double> expected(inputs.size()), condition(inputs.size()), extra(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    expected[i] = gelu_value(inputs[i], form);
    condition[i] = std::abs(expected[i]) * gelu_tail_condition(inputs[i], form);
    extra[i] = value_extra(c_dtype, form, inputs[i]);
  }
  expect_close(args.c, expected, condition, kActivationTolerance.steps(), problem.name(way.name + ": gelu"), extra);
}

GemmArgs gradient_args(const Problem& problem, DType dtype, DType c_dtype, GeluForm form) {
  GemmArgs args = problem.args(dtype);
  args.c = make_unwritten(c_dtype, args.c.shape());
  std::vector<double> inputs = short_values(problem.product.size(), 5);
  for (double& value : inputs) value *= 4.0;
  args.aux = make_tensor(c_dtype, args.c.shape(), inputs);
  args.activation = GemmActivation::kGeluGradient;
  args.form = form;
  return args;
}

void check_gradient(const GemmWay& way, const Problem& problem, DType c_dtype, GeluForm form) {
  const GemmArgs args = gradient_args(problem, way.dtype, c_dtype, form);
  way.gemm(args);
  const std::vector<double> inputs = values_of(args.aux);
  std::vector<double> expected(inputs.size()), magnitude(inputs.size()), extra(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double derivative = reference::gelu_derivative(inputs[i], form), product = std::abs(problem.product[i]);
    expected[i] = problem.product[i] * derivative;
    // The product's error times |gelu'|, which is bounded by its terms, and the derivative's error times |product|.
    magnitude[i] =
        problem.magnitude[i] * (gelu_derivative_terms(inputs[i], form) * gelu_tail_condition(inputs[i], form) + 1e-7);
    extra[i] = std::abs(derivative) * operand_rounding(c_dtype).error(product) +  // the product may be rounded
               product * derivative_extra(c_dtype, form, inputs[i]);
  }
  expect_close(args.c, expected, magnitude, problem.steps() + kActivationGradientTolerance.steps(),
               problem.name(way.name + ": gradient"), extra);
}

TEST(GemmGelu, AgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const MatmulShape& shape : kShapes) {
      const Problem problem({shape.m, shape.n, shape.k, false, true}), plain(shape);
      for (const GemmWay& way : device_under_test().gemm_ways()) {
        for (const GeluForm form : kGeluForms) {
          for (const DType c_dtype : {way.dtype, DType::kF32}) {
            check_value(way, problem, c_dtype, form, true);
            check_value(way, problem, c_dtype, form, false);
            check_gradient(way, plain, c_dtype, form);
          }
        }
      }
    }
  });
}

TEST(GemmGelu, AgreesWithTheReferenceWhereverOperandsLie) {
  for (const Placement placement : kPlacements) {
    const PlacementScope scope(placement);
    const Problem problem({33, 72, 40, false, true}), plain({33, 72, 40});
    for (const GemmWay& way : device_under_test().gemm_ways()) {
      check_value(way, problem, way.dtype, GeluForm::kTanh, true);
      check_gradient(way, plain, way.dtype, GeluForm::kTanh);
    }
  }
}

// Separate kernels give the bits of the kernels. A fusing device uses separate kernels for some products.
TEST(GemmGelu, StepsHaveTheBitsOfGemmAndGelu) {
  const Problem problem({33, 72, 40, false, true});
  const Tensor bias = make_tensor(DType::kF32, {72}, short_values(72, 3));
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    for (const GeluForm form : kGeluForms) {
      if (may_be_fused(way.dtype, form)) continue;
      const GemmArgs value = value_args(problem, way.dtype, way.dtype, form, bias);
      way.gemm(value);
      GemmArgs product = problem.args(way.dtype);
      product.bias = bias;
      way.gemm(product);
      const Tensor y = make_unwritten(way.dtype, product.c.shape());
      run(GeluForwardArgs{.x = product.c, .y = y, .form = form});
      EXPECT_EQ(bytes_of(value.aux), bytes_of(product.c));
      EXPECT_EQ(bytes_of(value.c), bytes_of(y));

      const GemmArgs gradient = gradient_args(problem, way.dtype, way.dtype, form);
      way.gemm(gradient);
      product.bias = Tensor();
      way.gemm(product);
      run(GeluBackwardArgs{.x = gradient.aux, .dy = product.c, .dx = product.c, .form = form});
      EXPECT_EQ(bytes_of(gradient.c), bytes_of(product.c));
    }
  }
}

TEST(GemmGelu, TheSameBitsOnEverySchedule) {
  const Problem problem({129, 136, 65, false, true});
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    expect_same_bits_on_every_schedule([&] {
      const GemmArgs value = value_args(problem, way.dtype, way.dtype, GeluForm::kTanh, Tensor());
      const GemmArgs gradient = gradient_args(problem, way.dtype, way.dtype, GeluForm::kTanh);
      way.gemm(value);
      way.gemm(gradient);
      return std::vector<Tensor>{value.aux, value.c, gradient.c};
    });
  }
}

// An overflow of the product must not become a finite number.
TEST(GemmGelu, NonFiniteSumsStayNonFinite) {
  for (const int64_t n : {8, 5}) {
    std::vector<double> b(static_cast<size_t>(n), 1.0);
    b[1] = 2.0;
    b[2] = -2.0;
    GemmArgs args{.a = make_tensor(DType::kF16, {1, 1}, {40000.0}),
                  .b = make_tensor(DType::kF16, {1, n}, b),
                  .c = make_unwritten(DType::kF16, {1, n}),
                  .aux = make_unwritten(DType::kF16, {1, n}),
                  .activation = GemmActivation::kGelu};
    run(args);
    const std::vector<double> inputs = values_of(args.aux), values = values_of(args.c);
    EXPECT_EQ(inputs[0], 40000.0);
    EXPECT_EQ(inputs[1], HUGE_VAL);
    EXPECT_EQ(inputs[2], -HUGE_VAL);
    EXPECT_EQ(values[0], 40000.0);
    EXPECT_EQ(values[1], HUGE_VAL);
  }
}

TEST(GemmGelu, RefusesWhatDoesNotFit) {
  const Problem problem({2, 8, 3});
  const GemmArgs good = value_args(problem, DType::kBF16, DType::kBF16, GeluForm::kTanh, Tensor());
  const auto refused = [&](const char* text, auto change) {
    GemmArgs args = good;
    change(args);
    expect_contract_error([&] { run(args); }, text);
  };
  refused("[gemm] aux must be given", [](GemmArgs& args) { args.aux = Tensor(); });
  refused("[gemm] aux must be bf16, got fp32", [](GemmArgs& args) { args.aux = make_unwritten(DType::kF32, {2, 8}); });
  refused("[gemm] aux must have shape (M, N)=(2, 8), got (2, 4)", [](GemmArgs& args) {
    args.aux = make_unwritten(DType::kBF16, {2, 4});
  });
  refused("[gemm] aux must not be c", [](GemmArgs& args) { args.aux = args.c; });
  refused("[gemm] aux belongs to an activation", [](GemmArgs& args) { args.activation = GemmActivation::kNone; });
  refused("[gemm] bias cannot be added to a product that gelu's derivative multiplies", [](GemmArgs& args) {
    args.activation = GemmActivation::kGeluGradient;
    args.bias = make_unwritten(DType::kBF16, {8});
  });
  refused("[gemm] a product with an activation cannot be accumulated", [](GemmArgs& args) {
    args.c = make_unwritten(DType::kF32, {2, 8});
    args.aux = make_unwritten(DType::kF32, {2, 8});
    args.mode = GradientMode::kAccumulate;
  });
}

}  // namespace gemm_gelu_test
}  // namespace mantissa::kernel_test
