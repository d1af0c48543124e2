// Linear layers with rounded operands. Each product is compared with the operands' contract (quantize_reference)
// multiplied in double. The layer computes in fp32, so only a product's summation differs.
#include "core/ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/quantize_reference.h"
#include "tests/testing/error_of.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace rounded_linear_test {

using testing::error_of;
using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kRows = 128, kInputs = 256, kOutputs = 128;
// For sums of at most 256 products in fp32, in any order.
constexpr double kTolerance = 256 * 0x1p-24;
// The same where FP8 units sum: an instruction is off by 2^-13 of its accumulator, and four of them follow each other
// before the sum goes to fp32 (tests/core/kernels/gemm/gemm_codes_test.cc).
constexpr double kUnitTolerance = 4 * 0x1p-13;

// A matrix with its extents.
struct Matrix {
  Values values;
  int64_t rows, columns;

  Matrix transposed() const {
    Matrix result{Values(values.size()), columns, rows};
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) result.at(c, r) = at(r, c);
    }
    return result;
  }
  float& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * columns + c)]; }
  float at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
};

float amax_of(const Values& values) {
  float amax = 0.0f;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

// The numbers that a product multiplies, divided by the tensor's scale, with blocks of `format` along `axis`.
Matrix rounded(const Matrix& matrix, std::optional<TensorFormat> format, BlockAxis axis,
               std::optional<float> given_scale = {}) {
  if (!format) return matrix;
  const float scale = given_scale.value_or(testing::reference_tensor_scale(*format, amax_of(matrix.values)));
  Matrix result = matrix;
  result.values = testing::quantize_reference(matrix.values, matrix.rows, matrix.columns, *format, axis, scale).values;
  for (float& value : result.values) value = static_cast<float>(static_cast<double>(value) / scale);
  return result;
}

Values product(const Matrix& a, const Matrix& b) {
  Values result;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < b.columns; ++c) {
      double sum = 0.0;
      for (int64_t k = 0; k < a.columns; ++k) sum += static_cast<double>(a.at(r, k)) * b.at(k, c);
      result.push_back(static_cast<float>(sum));
    }
  }
  return result;
}

LinearFormats same_everywhere(TensorFormat format) {
  LinearFormats formats;
  for (const Product p : kAllProducts) {
    for (const Role role : kAllRoles) formats.set(p, role, format);
  }
  return formats;
}

class RoundedLinear : public ::testing::Test {
 protected:
  struct Result {
    Values y, dx, dw, db;
  };

  RoundedLinear() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
    host_.set_weight(bias_, testing::normal_values(kOutputs, 3));
  }

  static Precision precision(const LinearFormats& formats) {
    Precision precision = testing::autocast(DType::kF32);
    precision.linear = formats;
    return precision;
  }
  TapeOptions options() {
    return {.random = {.seed = 5, .step = host_.step(step_), .first_sample = 0, .samples = 4}, .keeps_rounded = true};
  }

  double tolerance(Scaling scaling) {
    return takes(host_.backend().fp8_gemm_support(), scaling) ? kUnitTolerance : kTolerance;
  }

  Result run(const LinearFormats& formats) { return run(formats, options()); }
  Result run(const LinearFormats& formats, TapeOptions options) {
    const UniformPrecision policy(precision(formats));
    parameters_.forget_gradients();
    Result result;
    {
      const auto tape = host_.tape(policy, std::move(options));
      const Var out = linear(*tape, leaf(*tape, x_), weight_, &bias_);
      EXPECT_TRUE(weight_.weight.unique()) << "backward functions must not keep weights";
      result.y = host_.values(out.value);
      tape->backward(weighted_sum(*tape, out, dy_.values));
    }
    result.dx = host_.values(x_.gradient);
    result.dw = host_.values(weight_.gradient);
    result.db = host_.values(bias_.gradient);
    host_.arena().rewind();
    return result;
  }

  // Advances the scales as a single rank does.
  void advance(DelayedScales& scales) {
    const Tensor all = host_.backend().make_tensor(DType::kU8, scales.records().shape(), "test");
    host_.backend().copy(scales.records(), all, host_.stream());
    scales.advance(all, {});
  }

  Matrix x() { return {host_.values(x_.weight), kRows, kInputs}; }
  Matrix w() { return {host_.values(weight_.weight), kOutputs, kInputs}; }
  Values with_bias(Values y) {
    const Values bias = host_.values(bias_.weight);
    for (size_t i = 0; i < y.size(); ++i) y[i] += bias[i % kOutputs];
    return y;
  }

  testing::TapeHost host_;
  int32_t step_ = 0;
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kRows, kInputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& weight_ = parameters_.add("up.weight", {kOutputs, kInputs}, {Init::Kind::kNormal, 0.05f});
  Parameter& bias_ = parameters_.add("up.bias", {kOutputs}, {});
  Matrix dy_{testing::normal_values(kRows * kOutputs, 9, 1e-4f), kRows, kOutputs};
};

class RoundedLinearBy : public RoundedLinear, public ::testing::WithParamInterface<TensorFormat> {};

TEST_P(RoundedLinearBy, ProductsAreThoseOfRoundedOperands) {
  const TensorFormat f = GetParam();
  const bool is_square = f.scaling == Scaling::kBlock;
  const auto columns = BlockAxis::kColumns, rows = BlockAxis::kRows;
  const Matrix w_forward = rounded(w(), f, is_square ? BlockAxis::kBoth : columns);
  const Matrix w_backward = rounded(w(), f, is_square ? BlockAxis::kBoth : rows);
  const Result result = run(same_everywhere(f));
  const double allowed = tolerance(f.scaling);
  EXPECT_LT(testing::relative_error(result.y, with_bias(product(rounded(x(), f, columns), w_forward.transposed()))),
            allowed);
  EXPECT_LT(testing::relative_error(result.dx, product(rounded(dy_, f, columns), w_backward)), allowed);
  EXPECT_LT(testing::relative_error(result.dw, product(rounded(dy_, f, rows).transposed(), rounded(x(), f, rows))),
            allowed);
  EXPECT_LT(testing::relative_error(result.db, run({}).db), kTolerance) << "of unrounded gradients";
}

INSTANTIATE_TEST_SUITE_P(Recipes, RoundedLinearBy,
                         ::testing::Values(TensorFormat{Format::kE4M3, Scaling::kCurrent},
                                           TensorFormat{Format::kE5M2, Scaling::kCurrent},
                                           TensorFormat{Format::kE4M3, Scaling::kBlock},
                                           TensorFormat{Format::kE4M3, Scaling::kMicro},
                                           TensorFormat{Format::kE5M2, Scaling::kMicro}));

TEST_F(RoundedLinear, ProductsAreAssignedSeparately) {
  const TensorFormat f{Format::kE4M3, Scaling::kCurrent};
  const Result plain = run({});
  for (const Product p : kAllProducts) {
    LinearFormats formats;
    for (const Role role : kAllRoles) formats.set(p, role, f);
    const Result result = run(formats);
    EXPECT_EQ(result.y != plain.y, p == Product::kForward) << name(p);
    EXPECT_EQ(result.dx != plain.dx, p == Product::kInputGradient) << name(p);
    EXPECT_EQ(result.dw != plain.dw, p == Product::kWeightGradient) << name(p);
  }
}

TEST_F(RoundedLinear, OperandsAreAssignedSeparately) {
  const TensorFormat f{Format::kE4M3, Scaling::kCurrent};
  LinearFormats formats;
  formats.set(Product::kForward, Role::kWeight, f);
  const Matrix w_rounded = rounded(w(), f, BlockAxis::kColumns);
  EXPECT_LT(testing::relative_error(run(formats).y, with_bias(product(x(), w_rounded.transposed()))), kTolerance);
}

TEST_F(RoundedLinear, ResultsHaveTheLayersDtype) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    Precision p = testing::autocast(dtype);
    p.linear = same_everywhere({Format::kE4M3, Scaling::kCurrent});
    p.linear.set(Product::kForward, Role::kActivation, std::nullopt);
    const Values exact = run({}).y;
    const UniformPrecision policy(p);
    const auto tape = host_.tape(policy, options());
    const Var out = linear(*tape, leaf(*tape, x_), weight_, &bias_);
    EXPECT_EQ(out.value.dtype(), dtype);
    EXPECT_LT(testing::relative_error(host_.values(out.value), exact), 0.05) << name(dtype);
  }
}

// Two levels, with an exact forward product and stochastically rounded gradients. All blocks have one amax, so no
// block's scale is rounded. A scale rounded down would push its block's largest value beyond the format's range.
TEST_F(RoundedLinear, StochasticGradientsHaveTheRightMean) {
  const TensorFormat f{Format::kE2M1, Scaling::kTwoLevel};
  const Matrix w_rounded = rounded(w(), f, BlockAxis::kBoth);
  for (size_t i = 0; i < dy_.values.size(); i += 16) dy_.values[i] = 5e-4f;
  const Result first = run(same_everywhere(f)), again = run(same_everywhere(f));
  EXPECT_LT(testing::relative_error(first.y,
                                    with_bias(product(rounded(x(), f, BlockAxis::kColumns), w_rounded.transposed()))),
            kTolerance);
  EXPECT_EQ(first.dx, again.dx) << "words of the same step";
  EXPECT_EQ(first.dw, again.dw);

  const Values exact = product(dy_, w_rounded);
  const int steps = host_.is_slow() ? 16 : 64;
  std::vector<double> sums(exact.size());
  for (; step_ < steps; ++step_) {
    const Values dx = run(same_everywhere(f)).dx;
    for (size_t i = 0; i < dx.size(); ++i) sums[i] += dx[i];
  }
  Values mean(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) mean[i] = static_cast<float>(sums[i] / steps);
  // Independent errors shrink in the mean by the root of the number of steps. A bias would stay.
  const double once = testing::relative_error(first.dx, exact), many = testing::relative_error(mean, exact);
  EXPECT_GT(once, 0.05);
  EXPECT_NEAR(many * std::sqrt(steps) / once, 1.0, 0.1);
}

// The transform is orthogonal: it changes the product by rounding only, and less if one value outweighs the others.
TEST_F(RoundedLinear, TheTransformSpreadsOutliersOfWeightGradients) {
  const TensorFormat f{Format::kE2M1, Scaling::kTwoLevel};
  Values values = host_.values(x_.weight);
  for (int64_t r = 0; r < kRows; r += 16) values[static_cast<size_t>(r * kInputs)] = 64.0f;
  host_.set_weight(x_, values);
  const Values exact = run({}).dw;
  const double error = testing::relative_error(run(same_everywhere(f)).dw, exact);
  EXPECT_GT(error, 0.0);
  EXPECT_LT(error, 0.25);
}

TEST_F(RoundedLinear, WeightsAreRoundedOncePerVersion) {
  host_.backend().set_gemm_options({.narrow_math = NarrowMath::kEmulated});
  const LinearFormats formats = same_everywhere({Format::kE4M3, Scaling::kMicro});
  const Result before = run(formats);
  const size_t bytes = host_.derived_weights().size_bytes(DerivedKind::kRounded);
  EXPECT_GE(bytes, 2u * kOutputs * kInputs * sizeof(BFloat16)) << "along either axis";
  EXPECT_EQ(run(formats).y, before.y);
  Values twice = host_.values(weight_.weight);
  for (float& value : twice) value *= 2.0f;
  host_.backend().upload(twice.data(), weight_.weight, host_.stream());
  EXPECT_EQ(run(formats).y, before.y) << "the version has not changed";
  ++weight_.version;
  EXPECT_NE(run(formats).y, before.y);
  EXPECT_EQ(host_.derived_weights().size_bytes(DerivedKind::kRounded), bytes);
}

TEST_F(RoundedLinear, SizesThatAreNoWholeBlocksAreRefused) {
  ParameterSet parameters;
  Parameter& narrow = parameters.add("blocks.0.mlp.up.weight", {64, kInputs}, {Init::Kind::kNormal, 1.0f});
  host_.bind(parameters);
  const UniformPrecision policy(precision(same_everywhere({Format::kE4M3, Scaling::kBlock})));
  const auto tape = host_.tape(policy, options());
  EXPECT_EQ(error_of([&] { linear(*tape, leaf(*tape, x_), narrow, nullptr); }),
            "layer 'blocks.0.mlp.up': the weight of fprop has 64 channels, and the recipe block needs a multiple of "
            "128 there: give 128, a recipe that takes 64 (mxfp8, nvfp4, current or delayed), or leave the operand "
            "unrounded by precision.rules: {match: 'blocks.0.mlp.up', op: linear, format: low}");
}

TEST_F(RoundedLinear, DelayedScalingCalibratesThenUsesAmaxesOfBefore) {
  LinearFormats formats = same_everywhere({Format::kE4M3, Scaling::kDelayed});
  for (const Product p : kAllProducts) formats.set(p, Role::kGradient, TensorFormat{Format::kE5M2, Scaling::kDelayed});
  const UniformPrecision policy(precision(formats));
  DelayedScales scales(parameters_, policy, {.history = 4}, host_.backend(), host_.stream());
  TapeOptions with_scales = options();
  with_scales.delayed_scales = &scales;
  EXPECT_FALSE(scales.calibrated());
  scales.begin_calibration();
  const Result plain = run({}), first = run(formats, with_scales);
  advance(scales);
  scales.end_calibration();
  EXPECT_EQ(first.y, plain.y) << "a calibration in fp32 multiplies the numbers as they are";
  EXPECT_EQ(first.dx, plain.dx);
  EXPECT_EQ(first.dw, plain.dw);

  const float x_scale = 448.0f / amax_of(x().values), dy_scale = 57344.0f / amax_of(dy_.values),
              w_scale = 448.0f / amax_of(w().values);
  EXPECT_EQ(host_.scalar(scales.slot(weight_, Role::kActivation, Format::kE4M3).scale), x_scale);
  EXPECT_EQ(host_.scalar(scales.slot(weight_, Role::kGradient, Format::kE5M2).scale), dy_scale);
  // Values have grown since the scale was computed: they saturate at the maximum until the next step.
  Values grown = x().values;
  for (float& value : grown) value *= 4.0f;
  host_.set_weight(x_, grown);
  const TensorFormat e4m3{Format::kE4M3, Scaling::kDelayed}, e5m2{Format::kE5M2, Scaling::kDelayed};
  const auto axis = BlockAxis::kColumns;
  const Matrix xq = rounded(x(), e4m3, axis, x_scale), wq = rounded(w(), e4m3, axis, w_scale),
               dyq = rounded(dy_, e5m2, axis, dy_scale);
  const Result second = run(formats, with_scales);
  const double allowed = tolerance(Scaling::kDelayed);
  EXPECT_LT(testing::relative_error(second.y, with_bias(product(xq, wq.transposed()))), allowed);
  EXPECT_LT(testing::relative_error(second.dx, product(dyq, wq)), allowed);
  EXPECT_LT(testing::relative_error(second.dw, product(dyq.transposed(), xq)), allowed);
  advance(scales);
  EXPECT_EQ(host_.scalar(scales.slot(weight_, Role::kActivation, Format::kE4M3).scale), 448.0f / amax_of(grown));
}

TEST_F(RoundedLinear, WithoutItsStateDelayedScalingIsCurrentScaling) {
  const Result delayed = run(same_everywhere({Format::kE4M3, Scaling::kDelayed})),
               current = run(same_everywhere({Format::kE4M3, Scaling::kCurrent}));
  EXPECT_EQ(delayed.y, current.y);
  EXPECT_EQ(delayed.dw, current.dw);
}

TEST_F(RoundedLinear, NonFiniteValuesStayVisible) {
  for (const Scaling scaling : {Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro}) {
    Values values = host_.values(x_.weight);
    values[5] = INFINITY;
    host_.set_weight(x_, values);
    const Result result = run(same_everywhere({Format::kE4M3, scaling}));
    EXPECT_FALSE(std::isfinite(result.y[0])) << name(scaling);
    EXPECT_TRUE(std::isfinite(result.y[kOutputs])) << name(scaling) << ": another row";
  }
}

}  // namespace rounded_linear_test
}  // namespace mantissa
