// Layer norm and RMS norm of a value or a sum, and their gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/norm/norm_cases.h"
#include "tests/reference/norm.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace norm_test {

using reference::random_values;
using Values = std::vector<double>;

constexpr auto kWrite = GradientMode::kWrite, kAccumulate = GradientMode::kAccumulate;

enum class Bias { kNone, kAny };  // any: as the norm has one

class NormKernel : public ::testing::TestWithParam<Norm> {
 protected:
  static bool is_layer() { return GetParam() == Norm::kLayer; }
  static float epsilon() { return is_layer() ? 1e-5f : 1e-6f; }
  static reference::NormFormula formula() { return {GetParam(), static_cast<double>(epsilon())}; }

  // All operands but x, residual and sum.
  static LayerNormForwardArgs operands(DType weight, DType y, int64_t rows, int64_t columns, Bias bias = Bias::kAny) {
    const bool has_bias = is_layer() && bias == Bias::kAny;
    return {.weight = make_tensor(weight, {columns}, random_values(columns, 2, 0.5, 1.5)),
            .bias = has_bias ? make_tensor(weight, {columns}, random_values(columns, 3)) : Tensor(),
            .y = make_unwritten(y, {rows, columns}),
            .mean = is_layer() ? make_unwritten(DType::kF32, {rows}) : Tensor(),
            .rstd = make_unwritten(DType::kF32, {rows}),
            .epsilon = epsilon()};
  }
  static LayerNormForwardArgs run_forward(const NormDTypes& dtypes, int64_t rows, int64_t columns,
                                          Bias bias = Bias::kAny, double shift = 0.0) {
    LayerNormForwardArgs args = operands(dtypes.weight, dtypes.y, rows, columns, bias);
    args.x = make_tensor(dtypes.x, {rows, columns}, random_values(rows * columns, 1, shift - 2.0, shift + 3.0));
    run_norm(GetParam(), args);
    return args;
  }
  static LayerNormForwardArgs run_sum(const NormSumDTypes& dtypes, int64_t rows, int64_t columns) {
    LayerNormForwardArgs args = operands(dtypes.weight, dtypes.y, rows, columns);
    args.x = make_tensor(dtypes.x, {rows, columns}, random_values(rows * columns, 11, -2.0, 3.0));
    args.residual = make_tensor(dtypes.residual, {rows, columns}, random_values(rows * columns, 12));
    args.sum = make_unwritten(dtypes.sum, {rows, columns});
    run_norm(GetParam(), args);
    return args;
  }
  // Operands of the backward pass, from a forward pass that has run.
  static LayerNormBackwardArgs backward_of(const LayerNormForwardArgs& forward, DType dy) {
    const Shape shape = forward.x.shape();
    return {.x = forward.x,
            .dy = make_tensor(dy, shape, random_values(shape.numel(), 4)),
            .weight = forward.weight,
            .mean = forward.mean,
            .rstd = forward.rstd};
  }

  // Checks y, mean and rstd against those of x, or of the sum as it is stored.
  static void check_normed(const LayerNormForwardArgs& f) {
    const Values x = values_of(f.sum.defined() ? f.sum : f.x), weight = values_of(f.weight);
    const Values bias = f.bias.defined() ? values_of(f.bias) : Values();
    const auto expected = reference::norm_forward(formula(), x, weight, bias);
    const size_t c = weight.size();
    const double steps = kNormTolerance.steps(static_cast<double>(c));
    expect_close(f.rstd, expected.rstd, expected.rstd, steps, "rstd");
    if (!is_layer()) return expect_close(f.y, expected.y, absolute(expected.y), steps, "y");
    Values magnitude = xhat_magnitude(x, expected.mean, expected.rstd, c), mean_magnitude(expected.mean.size());
    for (size_t i = 0; i < magnitude.size(); ++i) {
      magnitude[i] = magnitude[i] * weight[i % c] + (bias.empty() ? 0.0 : std::abs(bias[i % c]));
      mean_magnitude[i / c] += std::abs(x[i]) / static_cast<double>(c);
    }
    expect_close(f.y, expected.y, magnitude, steps, "y");
    expect_close(f.mean, expected.mean, mean_magnitude, steps, "mean");
  }
  static void check_forward(const NormDTypes& dtypes, int64_t rows, int64_t columns, Bias bias = Bias::kAny,
                            double shift = 0.0) {
    check_normed(run_forward(dtypes, rows, columns, bias, shift));
  }
  static void check_sum(const NormSumDTypes& dtypes, int64_t rows, int64_t columns) {
    const LayerNormForwardArgs args = run_sum(dtypes, rows, columns);
    const Values expected = sum_of(values_of(args.x), values_of(args.residual));
    expect_close(args.sum, expected, absolute(expected), kAddTolerance.steps(), "sum");
    check_normed(args);
  }
  static void check_backward(const NormDTypes& dtypes, DType dx_dtype, int64_t rows, int64_t columns, GradientMode mode,
                             Bias bias = Bias::kAny);
};

INSTANTIATE_TEST_SUITE_P(Both, NormKernel, ::testing::Values(Norm::kLayer, Norm::kRms),
                         [](const auto& info) { return info.param == Norm::kLayer ? "LayerNorm" : "RmsNorm"; });

void NormKernel::check_backward(const NormDTypes& dtypes, DType dx_dtype, int64_t rows, int64_t columns,
                                GradientMode mode, Bias bias) {
  const LayerNormForwardArgs f = run_forward(dtypes, rows, columns, bias);
  LayerNormBackwardArgs args = backward_of(f, dtypes.y);
  args.mode = args.weight_mode = args.bias_mode = mode;
  const auto gradient = [&](DType dtype, Shape shape, uint64_t seed) {
    return mode == kAccumulate ? make_tensor(dtype, shape, random_values(shape.numel(), seed))
                               : make_unwritten(dtype, shape);
  };
  args.dx = gradient(dx_dtype, {rows, columns}, 5);
  args.d_weight = gradient(DType::kF32, {columns}, 6);
  if (f.bias.defined()) args.d_bias = gradient(DType::kF32, {columns}, 7);
  const Values dx_before = values_of(args.dx), d_weight_before = values_of(args.d_weight),
               d_bias_before = f.bias.defined() ? values_of(args.d_bias) : Values();
  run_norm(GetParam(), args);

  const Values x = values_of(f.x), weight = values_of(f.weight), d = values_of(args.dy);
  const auto forward = reference::norm_forward(formula(), x, weight);
  const auto expected = reference::norm_backward(formula(), x, d, weight);
  const auto magnitude =
      gradient_magnitudes(xhat_magnitude(x, forward.mean, forward.rstd, weight.size()), d, weight, forward.rstd);
  const auto expect = [&](const Tensor& found, const Values& made, const Values& its_magnitude, const Values& before,
                          double steps, const char* what) {
    if (mode == kWrite) return expect_close(found, made, its_magnitude, steps, what);
    expect_close(found, sum_of(made, before), sum_of(its_magnitude, absolute(before)), steps, what);
  };
  const double n = static_cast<double>(columns), r = static_cast<double>(rows);
  expect(args.dx, expected.dx, magnitude.dx, dx_before, kNormInputGradientTolerance.steps(n), "dx");
  expect(args.d_weight, expected.d_weight, magnitude.d_weight, d_weight_before,
         kNormWeightGradientTolerance.steps(r + n), "d_weight");
  if (!f.bias.defined()) return;
  Values bias_magnitude(weight.size());
  for (size_t i = 0; i < d.size(); ++i) bias_magnitude[i % weight.size()] += std::abs(d[i]);
  expect(args.d_bias, expected.d_bias, bias_magnitude, d_bias_before, kColumnSumTolerance.steps(r), "d_bias");
}

TEST_P(NormKernel, ForwardAgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_forward(dtypes, rows, columns);
        if (is_layer()) check_forward(dtypes, rows, columns, Bias::kNone);
      }
    }
  });
}

// E[x^2] - mean^2 would lose all digits of this variance.
TEST_P(NormKernel, LargeMeanDoesNotCancel) {
  device_under_test().on_each_variant([] { check_forward(kNormDTypes[0], 5, 257, Bias::kAny, 1000.0); });
}

// More rows of a whole block each than there are blocks: a block's sum for one row is still read when it begins the
// next. Takes seconds, so for one of the norms.
class ManyLongRows : public NormKernel {};
INSTANTIATE_TEST_SUITE_P(One, ManyLongRows, ::testing::Values(Norm::kRms));

TEST_P(ManyLongRows, AgreeWithTheReference) {
  const int64_t rows = device_under_test().large(601);
  device_under_test().on_each_variant([&] { check_forward(kNormDTypes[0], rows, 16384); });
  check_sum(kNormSumDTypes[3], rows, 16384);
}

TEST_P(NormKernel, NormalisesASumAsItIsStored) { for_each_norm_sum(check_sum); }

// A kernel with a residual gives the bits of one on the ready sum. (tests/core/ops checks that the sum has the bits of
// an addition.)
TEST_P(NormKernel, ASumIsNormalisedWithTheBitsOfOneThatIsThere) {
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    for (const NormSumDTypes& dtypes : kNormSumDTypes) {
      if (!has_dtype_of_an_addend(dtypes)) continue;
      for (const auto& [rows, columns] : kLargeNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        const LayerNormForwardArgs sum = run_sum(dtypes, rows, columns);
        LayerNormForwardArgs plain = operands(dtypes.weight, dtypes.y, rows, columns);
        plain.x = sum.sum;
        run_norm(GetParam(), plain);
        EXPECT_EQ(bytes_of(sum.y), bytes_of(plain.y));
        EXPECT_EQ(bytes_of(sum.rstd), bytes_of(plain.rstd));
        if (is_layer()) {
          EXPECT_EQ(bytes_of(sum.mean), bytes_of(plain.mean));
        }
      }
    }
  }
}

TEST_P(NormKernel, BackwardAgreesWithTheReference) {
  device_under_test().on_each_variant([] {
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_backward(dtypes, dtypes.x, rows, columns, kWrite);
        check_backward(dtypes, dtypes.x, rows, columns, kAccumulate);
        if (is_layer()) check_backward(dtypes, dtypes.x, rows, columns, kWrite, Bias::kNone);
      }
    }
  });
}

TEST_P(NormKernel, LargeShapesAgreeWithTheReferenceWhereverTheyLie) {
  for (const Placement placement : kPlacements) {
    const PlacementScope scope(placement);
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const auto& [rows, columns] : kLargeNormShapes) {
        SCOPED_TRACE(::testing::Message() << rows << " x " << columns);
        check_forward(dtypes, rows, columns);
        check_backward(dtypes, dtypes.y, rows, columns, kAccumulate);
      }
    }
  }
}

TEST_P(NormKernel, EachGradientHasItsOwnMode) {
  const LayerNormForwardArgs f = run_forward(kNormDTypes[0], 20, 24);
  const auto gradients = [&](GradientMode mode, GradientMode weight_mode, GradientMode bias_mode) {
    const auto start = [](GradientMode own, Shape shape) {
      return own == kWrite ? make_unwritten(DType::kF32, shape)
                           : make_tensor(DType::kF32, shape, Values(static_cast<size_t>(shape.numel()), 1.0));
    };
    LayerNormBackwardArgs args = backward_of(f, DType::kF32);
    args.mode = mode, args.weight_mode = weight_mode, args.bias_mode = bias_mode;
    args.dx = start(mode, {20, 24});
    args.d_weight = start(weight_mode, {24});
    if (is_layer()) args.d_bias = start(bias_mode, {24});
    run_norm(GetParam(), args);
    std::vector<Values> found{values_of(args.dx), values_of(args.d_weight)};
    if (is_layer()) found.push_back(values_of(args.d_bias));
    return found;
  };
  const auto written = gradients(kWrite, kWrite, kWrite);
  for (size_t which = 0; which < written.size(); ++which) {
    const auto mixed = gradients(which == 0 ? kAccumulate : kWrite, which == 1 ? kAccumulate : kWrite,
                                 which == 2 ? kAccumulate : kWrite);
    for (size_t k = 0; k < written.size(); ++k) {
      for (size_t i = 0; i < written[k].size(); ++i) {
        const double expected = written[k][i] + (k == which ? 1.0 : 0.0);
        // The sum has one more rounding, and a compiler may omit the term's.
        ASSERT_NEAR(mixed[k][i], expected, k == which ? 0x1p-24 * (std::abs(expected) + std::abs(written[k][i])) : 0.0);
      }
    }
  }
}

TEST_P(NormKernel, TheSameBitsOnEverySchedule) {
  const int64_t rows = device_under_test().large(201);
  for (const NormDTypes& dtypes : kNormDTypes) {
    expect_same_bits_on_every_schedule([&] {
      const LayerNormForwardArgs f = run_forward(dtypes, rows, 129);
      LayerNormBackwardArgs args = backward_of(f, dtypes.y);
      args.dx = make_unwritten(dtypes.x, {rows, 129});
      args.d_weight = make_unwritten(DType::kF32, {129});
      if (is_layer()) args.d_bias = make_unwritten(DType::kF32, {129});
      run_norm(GetParam(), args);
      std::vector<Tensor> made{f.y, f.rstd, args.dx, args.d_weight};
      if (is_layer()) made.insert(made.end(), {f.mean, args.d_bias});
      return made;
    });
  }
}

// All of its row is NaN where a mean is subtracted. In RMS norm, an infinite value makes the other ones 0.
TEST_P(NormKernel, ANonFiniteValueReachesItsRowAndNoOther) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const double bad : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL}) {
        Values values = random_values(3 * 35, 1);
        values[35 + 34] = bad;
        LayerNormForwardArgs args = operands(DType::kF32, dtype, 3, 35, Bias::kNone);
        args.x = make_tensor(dtype, {3, 35}, values);
        run_norm(GetParam(), args);
        const Values result = values_of(args.y);
        EXPECT_TRUE(std::isnan(result[35 + 34]));
        for (size_t i = 0; i < result.size(); ++i) {
          EXPECT_TRUE(i / 35 == 1 ? !is_layer() || std::isnan(result[i]) : std::isfinite(result[i])) << i;
        }
      }
    }
  });
}

TEST_P(NormKernel, RefusesWhatDoesNotFit) {
  const auto expect_refused = [](LayerNormForwardArgs args, const std::function<void(LayerNormForwardArgs&)>& change,
                                 const std::string& text) {
    change(args);
    expect_contract_error([&] { run_norm(GetParam(), args); }, (is_layer() ? "[layer_norm] " : "[rms_norm] ") + text);
  };
  const LayerNormForwardArgs plain = run_forward(kNormDTypes[0], 2, 3), sum = run_sum(kNormSumDTypes[3], 2, 3);
  expect_refused(
      plain, [](auto& args) { args.weight = make_unwritten(DType::kF32, {4}); },
      "weight must have shape (C)=(3), got (4)");
  if (is_layer()) {
    expect_refused(
        plain, [](auto& args) { args.mean = make_unwritten(DType::kF32, {3}); },
        "mean must have 2 elements, got shape (3)");
  }
  expect_refused(
      sum, [](auto& args) { args.residual = {}; }, "residual and sum must both be given or neither, got sum only");
  expect_refused(
      sum, [](auto& args) { args.sum = {}; }, "residual and sum must both be given or neither, got residual only");
  expect_refused(
      sum,
      [](auto& args) {
        args.residual = make_unwritten(DType::kF32, {2, 2});
      },
      "residual must have 6 elements, got shape");
}

}  // namespace norm_test
}  // namespace mantissa::kernel_test
