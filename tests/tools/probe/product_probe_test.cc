// Probe results of a linear layer, against counts and products of the values themselves.
#include "tools/probe/run_probe.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "core/kernels/check_args.h"
#include "core/ops/linear.h"
#include "tests/reference/quantize_reference.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::leaf;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr int64_t kContext = 64, kRows = 4 * kContext, kInputs = 128, kOutputs = 256;
constexpr ProductProbe::Options kEverything{.rows = kRows, .context = kContext, .max_layers = 1};

// Normal values times powers of two over 40 binades, some replaced by 0.
Values spread_values(int64_t count, uint64_t seed) {
  Values values = testing::normal_values(count, seed);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = i % 17 == 0 ? 0.0f : std::ldexp(values[i], -static_cast<int>(i * 7 % 40));
  }
  return values;
}

// (rows, inner) times (inner, columns), in double.
std::vector<double> product(const Values& a, const Values& b, int64_t rows, int64_t inner, int64_t columns) {
  std::vector<double> result(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < inner; ++k) {
      const double x = a[static_cast<size_t>(r * inner + k)];
      for (int64_t c = 0; c < columns; ++c) {
        result[static_cast<size_t>(r * columns + c)] += x * b[static_cast<size_t>(k * columns + c)];
      }
    }
  }
  return result;
}

Values transposed(const Values& values, int64_t rows, int64_t columns) {
  Values result(values.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      result[static_cast<size_t>(c * rows + r)] = values[static_cast<size_t>(r * columns + c)];
    }
  }
  return result;
}

// The products of a layer's operands: y = x W^T, dx = dy W, dW = dy^T x.
std::vector<double> fprop(const Values& x, const Values& w) {
  return product(x, transposed(w, kOutputs, kInputs), kRows, kInputs, kOutputs);
}
std::vector<double> dgrad(const Values& dy, const Values& w) { return product(dy, w, kRows, kOutputs, kInputs); }
std::vector<double> wgrad(const Values& dy, const Values& x, int64_t rows = kRows) {
  return product(transposed(dy, rows, kOutputs), x, kOutputs, rows, kInputs);
}

template <typename T>
T amax_of(const std::vector<T>& values) {
  T amax = 0;
  for (const T value : values) amax = std::max(amax, std::fabs(value));
  return amax;
}

Values rows_of(const Values& values, int64_t columns, int64_t begin, int64_t count) {
  return {values.begin() + begin * columns, values.begin() + (begin + count) * columns};
}

double squares(const std::vector<double>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
}

double squares_of_difference(const auto& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < b.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

// Rounded with the tensor's own scale, then divided by it.
Values rounded(const Values& values, int64_t rows, int64_t columns, TensorFormat format) {
  const float scale = testing::reference_tensor_scale(format, amax_of(values));
  Values result = testing::quantize_reference(values, rows, columns, format, BlockAxis::kColumns, scale).values;
  for (float& value : result) value = static_cast<float>(static_cast<double>(value) / scale);
  return result;
}

class ProductProbeTest : public ::testing::Test {
 protected:
  ProductProbeTest() {
    host_.bind(parameters_);
    host_.set_weight(x_, spread_values(kRows * kInputs, 1));
    host_.set_weight(weight_, spread_values(kOutputs * kInputs, 2));
  }

  // Forward and backward of one layer; its gradients.
  Values pass(const LinearFormats& formats, ProductObserver* observer, Fp32Products products = Fp32Products::kFp32) {
    Precision precision = testing::autocast(DType::kF32);
    precision.linear = formats;
    precision.fp32_products = products;
    const UniformPrecision policy(precision);
    parameters_.forget_gradients();
    {
      const auto tape =
          host_.tape(policy, {.random = {.seed = 5, .step = host_.step(0), .samples = 4}, .observer = observer});
      const Tape::LayerGuard guard(*tape, "layer");
      const Var out = linear(*tape, leaf(*tape, x_), weight_, nullptr);
      tape->backward(weighted_sum(*tape, out, dy_));
    }
    host_.arena().rewind();
    Values gradients = host_.values(weight_.gradient), dx = host_.values(x_.gradient);
    gradients.insert(gradients.end(), dx.begin(), dx.end());
    return gradients;
  }

  static auto by_role(ProductProbe& probe) {
    std::map<std::string, ProbeRow> found;
    for (ProbeRow& row : probe.rows()) found.emplace(row.role, std::move(row));
    return found;
  }
  auto look(const LinearFormats& formats, const ProductProbe::Options& options = kEverything,
            Fp32Products products = Fp32Products::kFp32) {
    ProductProbe probe(options, host_.backend(), host_.stream());
    probe.begin();
    pass(formats, &probe, products);
    return by_role(probe);
  }

  static LinearFormats everywhere(TensorFormat format) {
    LinearFormats formats;
    for (const Product product : kAllProducts) {
      for (const Role role : kAllRoles) formats.set(product, role, format);
    }
    return formats;
  }

  Values x() { return host_.values(x_.weight); }
  Values w() { return host_.values(weight_.weight); }

  testing::TapeHost host_;
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("input.x", {kRows, kInputs}, {});
  Parameter& weight_ = parameters_.add("layer.weight", {kOutputs, kInputs}, {});
  const Values dy_ = spread_values(kRows * kOutputs, 3);
};

// By rounding each value, for every format and several scales.
TEST_F(ProductProbeTest, CountsEqualABruteForceCount) {
  const auto found = look({});
  const std::pair<const char*, Values> tensors[] = {{"activation", x()}, {"weight", w()}, {"gradient", dy_}};
  for (const auto& [role, values] : tensors) {
    const ProbeRow& row = found.at(role);
    EXPECT_EQ(row.tensor, "layer");
    for (const Format format : {Format::kF16, Format::kBF16, Format::kE4M3, Format::kE5M2, Format::kE2M1}) {
      for (const int exponent : {-20, -3, 0, 1, 14}) {
        FormatLosses expected{.elements = static_cast<int64_t>(values.size())};
        for (const float value : values) {
          const float scaled = std::ldexp(value, exponent);  // exact: far from fp32's ends
          const float made = std::fabs(quantize(format, scaled, Saturation::kNo));
          if (value == 0.0f) {
            ++expected.zeros;
          } else if (made == 0.0f) {
            ++expected.underflowed;
          } else if (!(made <= info(format).max) || std::fabs(scaled) > 1.25 * info(format).max) {
            ++expected.overflowed;
          } else if (made < info(format).min_normal) {
            ++expected.subnormal;
          }
        }
        if (format == Format::kE2M1) expected.overflowed = format_losses(row.histogram, format, exponent).overflowed;
        EXPECT_EQ(format_losses(row.histogram, format, exponent), expected)
            << role << " in " << info(format).name << " at 2^" << exponent;
      }
    }
  }
}

TEST_F(ProductProbeTest, LossesAreThoseOfTheFormatInUse) {
  constexpr TensorFormat kFormat{Format::kE4M3, Scaling::kCurrent};
  const auto found = look(everywhere(kFormat));
  const std::pair<const char*, Values> tensors[] = {{"activation", x()}, {"weight", w()}, {"gradient", dy_}};
  for (const auto& [role, values] : tensors) {
    const ProbeRow& row = found.at(role);
    EXPECT_EQ(row.format, "current:e4m3");
    const Values made = rounded(values, 1, static_cast<int64_t>(values.size()), kFormat);
    int64_t underflowed = 0;
    for (size_t i = 0; i < values.size(); ++i) underflowed += values[i] != 0.0f && made[i] == 0.0f;
    EXPECT_GT(underflowed, 0);
    EXPECT_EQ(row.losses.underflowed, underflowed) << role;
    EXPECT_EQ(row.losses.overflowed, 0) << role;
    EXPECT_EQ(row.losses.elements, static_cast<int64_t>(values.size())) << role;
  }
}

TEST_F(ProductProbeTest, SeesWhatTheProductsMade) {
  const auto found = look({});
  EXPECT_EQ(found.at("input gradient").histogram.amax, magnitude_bits(amax_of(host_.values(x_.gradient))));
  EXPECT_EQ(found.at("input gradient").losses.elements, kRows * kInputs);
  EXPECT_EQ(found.at("output").losses.elements, kRows * kOutputs);
  EXPECT_EQ(found.at("output").format, "fp32");
}

// Two layers with gelu between them, whose products include it: y is seen before gelu, and dx before its derivative.
TEST_F(ProductProbeTest, SeesResultsWithoutTheActivationFunction) {
  Parameter& down = parameters_.add("down.weight", {kInputs, kOutputs}, {});
  host_.bind(parameters_);
  host_.set_weight(x_, spread_values(kRows * kInputs, 1));
  host_.set_weight(weight_, spread_values(kOutputs * kInputs, 2));
  host_.set_weight(down, spread_values(kInputs * kOutputs, 4));
  ProductProbe probe({.rows = kRows, .context = kContext, .max_layers = 2}, host_.backend(), host_.stream());
  probe.begin();
  const Values dy = spread_values(kRows * kInputs, 5);
  const UniformPrecision policy(testing::autocast(DType::kF32));
  {
    const auto tape =
        host_.tape(policy, {.random = {.seed = 5, .step = host_.step(0), .samples = 4}, .observer = &probe});
    const Tape::LayerGuard guard(*tape, "layer");
    GeluOutput hidden = linear_gelu(*tape, leaf(*tape, x_), weight_, nullptr, GeluForm::kTanh);
    const Var out = linear(*tape, std::move(hidden), down, nullptr);
    tape->backward(weighted_sum(*tape, out, dy));
  }
  host_.arena().rewind();
  const double y_amax = amax_of(fprop(x(), w()));
  const double dx_amax = amax_of(product(dy, host_.values(down.weight), kRows, kInputs, kOutputs));
  bool saw_y = false, saw_dx = false;
  for (const ProbeRow& row : probe.rows()) {
    const double seen = static_cast<double>(std::bit_cast<float>(row.histogram.amax));
    if (row.tensor == "layer" && row.role == "output") saw_y = std::fabs(seen / y_amax - 1.0) < 1e-5;
    if (row.tensor == "down" && row.role == "input gradient") saw_dx = std::fabs(seen / dx_amax - 1.0) < 1e-5;
  }
  EXPECT_TRUE(saw_y);
  EXPECT_TRUE(saw_dx);
}

// Sums of 256 products in fp32 on both sides.
TEST_F(ProductProbeTest, ErrorsAreThoseOfTheProducts) {
  constexpr TensorFormat kFormat{Format::kE4M3, Scaling::kCurrent};
  const auto found = look(everywhere(kFormat));
  const Values rx = rounded(x(), kRows, kInputs, kFormat), rw = rounded(w(), kOutputs, kInputs, kFormat);
  const Values rdy = rounded(dy_, kRows, kOutputs, kFormat);
  struct Case {
    const char* product;
    std::vector<double> exact, made;
  };
  const Case cases[] = {{"fprop", fprop(x(), w()), fprop(rx, rw)},
                        {"dgrad", dgrad(dy_, w()), dgrad(rdy, rw)},
                        {"wgrad", wgrad(dy_, x()), wgrad(rdy, rx)}};
  for (const Case& one : cases) {
    const ProbeRow& row = found.at(one.product);
    EXPECT_EQ(row.format, "current:e4m3 x current:e4m3");
    const double signal = squares(one.exact), noise = squares_of_difference(one.made, one.exact);
    EXPECT_NEAR(row.error.reference_squares, signal, 1e-5 * signal) << one.product;
    EXPECT_NEAR(row.error.error_squares, noise, 1e-4 * noise) << one.product;
    EXPECT_EQ(row.error.elements, static_cast<int64_t>(one.exact.size()));
  }
}

// fp32 operands in bf16 parts.
TEST_F(ProductProbeTest, ErrorsOfSplitProductsAreThoseOfTheirParts) {
  const auto part = [](const Values& values) {
    Values parts;
    for (const float value : values) parts.push_back(to_float(from_float<BFloat16>(value)));
    return parts;
  };
  const auto rest = [](Values values, const Values& parts) {
    for (size_t i = 0; i < values.size(); ++i) values[i] -= parts[i];  // exact
    return values;
  };
  const Values x1 = part(x()), x2 = part(rest(x(), x1)), w1 = part(w()), w2 = part(rest(w(), w1));
  const std::vector<double> exact = fprop(x(), w()), parts[] = {fprop(x1, w2), fprop(x2, w1)};
  std::vector<double> made = fprop(x1, w1);
  for (const auto& summand : parts) {
    for (size_t i = 0; i < made.size(); ++i) made[i] += summand[i];
  }
  const double signal = squares(exact), noise = squares_of_difference(made, exact);

  // Rounding of the sums and of the reference's sums is 2^-24, and the parts omit about 2^-17: 2^-7 of the error, and
  // twice that of its square.
  const ProbeRow three = look({}, kEverything, Fp32Products::kBf16x3).at("fprop");
  EXPECT_EQ(three.format, "fp32 x fp32 by bf16x3");
  EXPECT_NEAR(three.error.error_squares, noise, 0x1p-6 * noise);
  const ProbeRow six = look({}, kEverything, Fp32Products::kBf16x6).at("fprop");
  EXPECT_EQ(six.error.elements, three.error.elements);
  EXPECT_LT(six.error.error_squares, 0x1p-40 * signal);
}

// The gradients are products in fp32 of the same operands. Sums of the reference are 2^-29 nearer than theirs.
TEST_F(ProductProbeTest, ReferencesInFp64ShowTheRoundingOfFp32) {
  constexpr ProductProbe::Options kInFp64{
      .rows = kRows, .context = kContext, .max_layers = 1, .reference = DType::kF64};
  const auto found = look({}, kInFp64);
  const double dx_noise = squares_of_difference(host_.values(x_.gradient), dgrad(dy_, w()));
  const double dw_noise = squares_of_difference(host_.values(weight_.gradient), wgrad(dy_, x()));
  EXPECT_GT(dx_noise, 0.0);
  EXPECT_NEAR(found.at("dgrad").error.error_squares, dx_noise, 1e-6 * dx_noise);
  EXPECT_NEAR(found.at("wgrad").error.error_squares, dw_noise, 1e-6 * dw_noise);
  EXPECT_GT(found.at("wgrad").batch_noise, 0.0);

  // Six parts in bf16 omit less than fp32 rounds away: their error shows as well.
  const ProbeRow six = look({}, kInFp64, Fp32Products::kBf16x6).at("fprop");
  EXPECT_GT(signal_to_noise_db(six.error), 120.0);
  EXPECT_LT(signal_to_noise_db(six.error), 160.0);
}

// From the gradients of the samples' first and second halves.
TEST_F(ProductProbeTest, BatchNoiseIsTheDifferenceOfTwoHalves) {
  const auto found = look({});
  const int64_t half = kRows / 2;
  std::vector<double> parts[2];
  for (const int64_t i : {0, 1}) {
    parts[i] = wgrad(rows_of(dy_, kOutputs, i * half, half), rows_of(x(), kInputs, i * half, half), half);
  }
  const double expected = squares_of_difference(parts[0], parts[1]);
  EXPECT_NEAR(found.at("wgrad").batch_noise, expected, 1e-5 * expected);
}

TEST_F(ProductProbeTest, LooksAtProductsOnSomeOfTheRows) {
  const auto found = look({}, {.rows = 2 * kContext, .context = kContext, .max_layers = 1});
  EXPECT_EQ(found.at("fprop").error.elements, 2 * kContext * kOutputs);
  EXPECT_EQ(found.at("dgrad").error.elements, 2 * kContext * kInputs);
  EXPECT_EQ(found.at("wgrad").error.elements, kOutputs * kInputs);
  EXPECT_EQ(found.at("activation").losses.elements, kRows * kInputs) << "tensors are counted whole";
  EXPECT_EQ(found.at("fprop").error.error_squares, 0.0) << "nothing is rounded";
}

// Halves of one sample are not two draws of samples.
TEST_F(ProductProbeTest, OneSampleHasNoBatchNoise) {
  for (const auto& [role, row] : look({}, {.rows = kRows, .context = kRows, .max_layers = 1})) {
    EXPECT_EQ(row.batch_noise, 0.0) << role;
  }
}

// At least two samples, for any number of rows.
TEST_F(ProductProbeTest, LooksAtTwoSamplesWhereThereAreTwo) {
  const auto found = look({}, {.rows = 1, .context = kRows / 2, .max_layers = 1});
  EXPECT_EQ(found.at("fprop").error.elements, kRows * kOutputs);
}

// The Hadamard transform mixes 16 rows, so a product of only some of them is meaningless.
TEST_F(ProductProbeTest, TakesWholeGroupsOfTransformedRows) {
  const auto ratio = [&](const ProductProbe::Options& options) {
    const ErrorSums error = look(everywhere({Format::kE2M1, Scaling::kTwoLevel}), options).at("wgrad").error;
    return error.error_squares / error.reference_squares;
  };
  const double whole = ratio({.rows = 192, .context = 32, .max_layers = 1});
  EXPECT_GT(whole, 0.0);
  // 18 * 2 * 5 = 180 rows would split a group; 18 * 2 * 4 = 144 do not.
  EXPECT_LT(ratio({.rows = 190, .context = 18, .max_layers = 1}), 2.0 * whole);
}

// A head computed in chunks.
TEST_F(ProductProbeTest, CountsWhatComesInPieces) {
  ProductProbe probe(kEverything, host_.backend(), host_.stream());
  probe.begin();
  const Tensor x = x_.weight, w = weight_.weight, y = host_.tensor(dy_, {kRows, kOutputs});
  for (const bool is_first : {true, false, false}) {
    probe.on_product({.weight = weight_,
                      .product = Product::kForward,
                      .a = {.given = x, .multiplied = x},
                      .b = {.given = w, .multiplied = w},
                      .result = y,
                      .is_first = is_first});
  }
  const auto found = by_role(probe);
  EXPECT_EQ(found.at("activation").losses.elements, 3 * kRows * kInputs);
  EXPECT_EQ(found.at("output").losses.elements, 3 * kRows * kOutputs);
  EXPECT_EQ(found.at("weight").losses.elements, kOutputs * kInputs);
  EXPECT_EQ(found.at("fprop").error.elements, kRows * kOutputs);
}

TEST_F(ProductProbeTest, ChangesNothing) {
  for (const Scaling scaling : {Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro}) {
    const LinearFormats formats = everywhere({Format::kE4M3, scaling});
    ProductProbe probe(kEverything, host_.backend(), host_.stream());
    probe.begin();
    const Values seen = pass(formats, &probe);
    EXPECT_EQ(seen, pass(formats, nullptr)) << name(scaling);
  }
}

TEST_F(ProductProbeTest, OneOfTheRanksCountsWeights) {
  const auto found = look({}, {.rows = kRows, .context = kContext, .max_layers = 1, .counts_weights = false});
  EXPECT_EQ(found.at("weight").histogram, ExponentHistogram());
  EXPECT_GT(found.at("activation").histogram.amax, 0u);
}

}  // namespace
}  // namespace mantissa
