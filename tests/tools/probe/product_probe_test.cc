// Probe results of a linear layer, against counts and products of the values themselves.
#include "tools/probe/product_probe.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

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

Values rows_of(const Values& values, int64_t columns, int64_t begin, int64_t count) {
  return {values.begin() + begin * columns, values.begin() + (begin + count) * columns};
}

double squares(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value * value;
  return sum;
}

std::vector<double> difference(std::vector<double> a, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

// Rounded with the tensor's own scale, then divided by it.
Values rounded(const Values& values, int64_t rows, int64_t columns, TensorFormat format) {
  float amax = 0.0f;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  const float scale = testing::reference_tensor_scale(format, amax);
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

  std::map<std::string, ProbeRow> look(const LinearFormats& formats, int64_t rows,
                                       Fp32Products products = Fp32Products::kFp32, DType reference = DType::kF32) {
    ProductProbe probe({.rows = rows, .context = kContext, .max_layers = 1, .reference = reference}, host_.backend(),
                       host_.stream());
    probe.begin();
    pass(formats, &probe, products);
    std::map<std::string, ProbeRow> found;
    for (ProbeRow& row : probe.rows()) found.emplace(row.role, std::move(row));
    return found;
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
  const auto found = look({}, kRows);
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
  const auto found = look(everywhere(kFormat), kRows);
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
  const auto found = look({}, kRows);
  float amax = 0.0f;
  for (const float value : host_.values(x_.gradient)) amax = std::max(amax, std::fabs(value));
  EXPECT_EQ(found.at("input gradient").histogram.amax, magnitude_bits(amax));
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
  const auto amax = [](const std::vector<double>& values) {
    double most = 0.0;
    for (const double value : values) most = std::max(most, std::fabs(value));
    return most;
  };
  const double y_amax = amax(product(x(), transposed(w(), kOutputs, kInputs), kRows, kInputs, kOutputs));
  const double dx_amax = amax(product(dy, host_.values(down.weight), kRows, kInputs, kOutputs));
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
  const auto found = look(everywhere(kFormat), kRows);
  const Values rx = rounded(x(), kRows, kInputs, kFormat), rw = rounded(w(), kOutputs, kInputs, kFormat);
  const Values rdy = rounded(dy_, kRows, kOutputs, kFormat);
  struct Case {
    const char* product;
    std::vector<double> exact, made;
  };
  const Case cases[] = {
      {"fprop", product(x(), transposed(w(), kOutputs, kInputs), kRows, kInputs, kOutputs),
       product(rx, transposed(rw, kOutputs, kInputs), kRows, kInputs, kOutputs)},
      {"dgrad", product(dy_, w(), kRows, kOutputs, kInputs), product(rdy, rw, kRows, kOutputs, kInputs)},
      {"wgrad", product(transposed(dy_, kRows, kOutputs), x(), kOutputs, kRows, kInputs),
       product(transposed(rdy, kRows, kOutputs), rx, kOutputs, kRows, kInputs)}};
  for (const Case& one : cases) {
    const ProbeRow& row = found.at(one.product);
    EXPECT_EQ(row.format, "current:e4m3 x current:e4m3");
    const double signal = squares(one.exact), noise = squares(difference(one.made, one.exact));
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
  const auto of = [](const Values& a, const Values& b) {
    return product(a, transposed(b, kOutputs, kInputs), kRows, kInputs, kOutputs);
  };
  const std::vector<double> exact = of(x(), w()), parts[] = {of(x1, w2), of(x2, w1)};
  std::vector<double> made = of(x1, w1);
  for (const auto& summand : parts) {
    for (size_t i = 0; i < made.size(); ++i) made[i] += summand[i];
  }
  const double signal = squares(exact), noise = squares(difference(made, exact));

  // Rounding of the sums and of the reference's sums is 2^-24, and the parts omit about 2^-17: 2^-7 of the error, and
  // twice that of its square.
  const ProbeRow three = look({}, kRows, Fp32Products::kBf16x3).at("fprop");
  EXPECT_EQ(three.format, "fp32 x fp32 by bf16x3");
  EXPECT_NEAR(three.error.error_squares, noise, 0x1p-6 * noise);
  const ProbeRow six = look({}, kRows, Fp32Products::kBf16x6).at("fprop");
  EXPECT_EQ(six.error.elements, three.error.elements);
  EXPECT_LT(six.error.error_squares, 0x1p-40 * signal);
}

// The gradients are products in fp32 of the same operands. Sums of the reference are 2^-29 nearer than theirs.
TEST_F(ProductProbeTest, ReferencesInFp64ShowTheRoundingOfFp32) {
  const auto found = look({}, kRows, Fp32Products::kFp32, DType::kF64);
  const auto noise_of = [](const Values& made, const std::vector<double>& exact) {
    return squares(difference(std::vector<double>(made.begin(), made.end()), exact));
  };
  const double dgrad = noise_of(host_.values(x_.gradient), product(dy_, w(), kRows, kOutputs, kInputs));
  const double wgrad = noise_of(host_.values(weight_.gradient),
                                product(transposed(dy_, kRows, kOutputs), x(), kOutputs, kRows, kInputs));
  EXPECT_GT(dgrad, 0.0);
  EXPECT_NEAR(found.at("dgrad").error.error_squares, dgrad, 1e-6 * dgrad);
  EXPECT_NEAR(found.at("wgrad").error.error_squares, wgrad, 1e-6 * wgrad);
  EXPECT_GT(found.at("wgrad").batch_noise, 0.0);

  // Six parts in bf16 omit less than fp32 rounds away: their error shows as well.
  const ProbeRow six = look({}, kRows, Fp32Products::kBf16x6, DType::kF64).at("fprop");
  EXPECT_GT(signal_to_noise_db(six.error), 120.0);
  EXPECT_LT(signal_to_noise_db(six.error), 160.0);
}

// From the gradients of the samples' first and second halves.
TEST_F(ProductProbeTest, BatchNoiseIsTheDifferenceOfTwoHalves) {
  const auto found = look({}, kRows);
  const int64_t half = kRows / 2;
  std::vector<double> parts[2];
  for (const int64_t i : {0, 1}) {
    parts[i] = product(transposed(rows_of(dy_, kOutputs, i * half, half), half, kOutputs),
                       rows_of(x(), kInputs, i * half, half), kOutputs, half, kInputs);
  }
  const double expected = squares(difference(parts[0], parts[1]));
  EXPECT_NEAR(found.at("wgrad").batch_noise, expected, 1e-5 * expected);
}

TEST_F(ProductProbeTest, LooksAtProductsOnSomeOfTheRows) {
  const auto found = look({}, 2 * kContext);
  EXPECT_EQ(found.at("fprop").error.elements, 2 * kContext * kOutputs);
  EXPECT_EQ(found.at("dgrad").error.elements, 2 * kContext * kInputs);
  EXPECT_EQ(found.at("wgrad").error.elements, kOutputs * kInputs);
  EXPECT_EQ(found.at("activation").losses.elements, kRows * kInputs) << "tensors are counted whole";
  EXPECT_EQ(found.at("fprop").error.error_squares, 0.0) << "nothing is rounded";
}

// Halves of one sample are not two draws of samples.
TEST_F(ProductProbeTest, OneSampleHasNoBatchNoise) {
  ProductProbe probe({.rows = kRows, .context = kRows, .max_layers = 1}, host_.backend(), host_.stream());
  probe.begin();
  pass({}, &probe);
  for (const ProbeRow& row : probe.rows()) EXPECT_EQ(row.batch_noise, 0.0) << row.role;
}

// At least two samples, for any number of rows.
TEST_F(ProductProbeTest, LooksAtTwoSamplesWhereThereAreTwo) {
  ProductProbe probe({.rows = 1, .context = kRows / 2, .max_layers = 1}, host_.backend(), host_.stream());
  probe.begin();
  pass({}, &probe);
  for (const ProbeRow& row : probe.rows()) {
    if (row.role == "fprop") {
      EXPECT_EQ(row.error.elements, kRows * kOutputs);
    }
  }
}

// The Hadamard transform mixes 16 rows, so a product of only some of them is meaningless.
TEST_F(ProductProbeTest, TakesWholeGroupsOfTransformedRows) {
  const LinearFormats formats = everywhere({Format::kE2M1, Scaling::kTwoLevel});
  const auto ratio = [&](int64_t context, int64_t rows) {
    ProductProbe probe({.rows = rows, .context = context, .max_layers = 1}, host_.backend(), host_.stream());
    probe.begin();
    pass(formats, &probe);
    for (const ProbeRow& row : probe.rows()) {
      if (row.role == "wgrad") return row.error.error_squares / row.error.reference_squares;
    }
    return 0.0;
  };
  const double whole = ratio(32, 192);
  EXPECT_GT(whole, 0.0);
  // 18 * 2 * 5 = 180 rows would split a group; 18 * 2 * 4 = 144 do not.
  EXPECT_LT(ratio(18, 190), 2.0 * whole);
}

// A head computed in chunks.
TEST_F(ProductProbeTest, CountsWhatComesInPieces) {
  ProductProbe probe({.rows = kRows, .context = kContext, .max_layers = 1}, host_.backend(), host_.stream());
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
  for (const ProbeRow& row : probe.rows()) {
    if (row.role == "activation") {
      EXPECT_EQ(row.losses.elements, 3 * kRows * kInputs);
    }
    if (row.role == "output") {
      EXPECT_EQ(row.losses.elements, 3 * kRows * kOutputs);
    }
    if (row.role == "weight") {
      EXPECT_EQ(row.losses.elements, kOutputs * kInputs);
    }
    if (row.role == "fprop") {
      EXPECT_EQ(row.error.elements, kRows * kOutputs);
    }
  }
}

TEST_F(ProductProbeTest, ChangesNothing) {
  for (const Scaling scaling : {Scaling::kCurrent, Scaling::kBlock, Scaling::kMicro}) {
    const LinearFormats formats = everywhere({Format::kE4M3, scaling});
    ProductProbe probe({.rows = kRows, .context = kContext, .max_layers = 1}, host_.backend(), host_.stream());
    probe.begin();
    const Values seen = pass(formats, &probe);
    EXPECT_EQ(seen, pass(formats, nullptr)) << name(scaling);
  }
}

TEST_F(ProductProbeTest, OneOfTheRanksCountsWeights) {
  ProductProbe probe({.rows = kRows, .context = kContext, .max_layers = 1, .counts_weights = false}, host_.backend(),
                     host_.stream());
  probe.begin();
  pass({}, &probe);
  for (const ProbeRow& row : probe.rows()) {
    if (row.role == "weight") {
      EXPECT_EQ(row.histogram, ExponentHistogram());
    } else if (row.role == "activation") {
      EXPECT_GT(row.histogram.amax, 0u);
    }
  }
}

}  // namespace
}  // namespace mantissa
