// Products of fp32 matrices by tf32 and by bf16 parts, against sums in double within the bounds that
// core/ops/fp32_product.h derives.
#include "core/ops/fp32_product.h"
#include "core/kernels/gemm/args.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/base/thread_team.h"
#include "core/ops/activation.h"
#include "core/ops/linear.h"
#include "tests/testing/precisions.h"
#include "tests/testing/tape_host.h"
#include "tests/testing/toy_ops.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::leaf;
using testing::normal_values;
using testing::weighted_sum;
using Values = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// op(a) op(b) in double, and the sums of magnitudes.
struct Exact {
  std::vector<double> c, magnitude;
};

struct Extents {
  int64_t m, n, k;
};

Exact exact_product(const Values& a, const Values& b, Extents e, bool trans_a, bool trans_b) {
  Exact exact;
  for (int64_t i = 0; i < e.m; ++i) {
    for (int64_t j = 0; j < e.n; ++j) {
      double sum = 0.0, magnitude = 0.0;
      for (int64_t l = 0; l < e.k; ++l) {
        const double product = static_cast<double>(a[static_cast<size_t>(trans_a ? l * e.m + i : i * e.k + l)]) *
                               b[static_cast<size_t>(trans_b ? j * e.k + l : l * e.n + j)];
        sum += product;
        magnitude += std::abs(product);
      }
      exact.c.push_back(sum);
      exact.magnitude.push_back(magnitude);
    }
  }
  return exact;
}

// In units of the sum of magnitudes, for K summands; `u` is half a step of an addition.
double bound(Fp32Products products, double k, double u) {
  const double parts = (1 + 0x1p-5) * (k + 2) * u;
  switch (products) {
    case Fp32Products::kFp32:
      return k * u;
    case Fp32Products::kTf32:
      return (0x1p-10 + 0x1p-22) * (u / 0x1p-24) + k * u;
    case Fp32Products::kBf16x3:
      return 0x1p-15 + 0x1p-34 + parts;
    case Fp32Products::kBf16x6:
      return parts;
  }
  return 0.0;
}

class Fp32Product : public ::testing::Test {
 protected:
  ~Fp32Product() override { set_threads(2); }

  // A GPU's matrix units truncate sums that others round.
  double unit() const { return host_.is_gpu() ? 0x1p-23 : 0x1p-24; }

  Values product(const Values& a, const Values& b, Extents e, Fp32Products products, bool trans_a = false,
                 bool trans_b = false) {
    const Tensor c = host_.tensor(Values(static_cast<size_t>(e.m * e.n), NAN), {e.m, e.n});
    multiply(*host_.tape(fp32_),
             {.a = host_.tensor(a, trans_a ? Shape{e.k, e.m} : Shape{e.m, e.k}),
              .b = host_.tensor(b, trans_b ? Shape{e.n, e.k} : Shape{e.k, e.n}),
              .c = c,
              .trans_a = trans_a ? Transpose::kYes : Transpose::kNo,
              .trans_b = trans_b ? Transpose::kYes : Transpose::kNo},
             products);
    return host_.values(c);
  }

  // `underflow`: allowed for each summand, because a unit may treat tiny parts as 0.
  void expect_within_bound(const Values& found, const Exact& exact, double k, Fp32Products products,
                           const std::string& what, double underflow = 0.0) const {
    const double allowed = bound(products, k, unit());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_LE(std::abs(found[i] - exact.c[i]), allowed * exact.magnitude[i] + k * underflow + 0x1p-126)
          << name(products) << ' ' << what << ", element " << i;
    }
  }

  // One linear layer: its three products and the gradient of its bias.
  struct Layer {
    Values y, dx, dw, db;
    bool operator==(const Layer&) const = default;
  };
  Layer run_layer(const PrecisionPolicy& policy, const std::string& layer = "a") {
    parameters_.forget_gradients();
    Layer result;
    {
      const auto tape = host_.tape(policy);
      const Tape::LayerGuard guard(*tape, layer);
      const Var y = linear(*tape, leaf(*tape, x_), weight_, &bias_);
      result.y = host_.values(y.value);
      tape->backward(weighted_sum(*tape, y, dy_));
    }
    result.dx = host_.values(x_.gradient);
    result.dw = host_.values(weight_.gradient);
    result.db = host_.values(bias_.gradient);
    host_.arena().rewind();
    return result;
  }
  static Precision precision(Fp32Products products, DType low = DType::kF32) {
    Precision result = testing::autocast(low);
    result.fp32_products = products;
    return result;
  }
  void make_layer() {
    host_.bind(parameters_);
    host_.initialize(parameters_, 1);
    host_.set_weight(bias_, normal_values(kOutputs, 3));
  }

  // Multiples of 4: cuBLASLt multiplies matrices of odd widths in fp32 where tf32 is allowed.
  static constexpr int64_t kRows = 68, kInputs = 64, kOutputs = 44;
  testing::TapeHost host_;
  UniformPrecision fp32_;
  ParameterSet parameters_;
  Parameter& x_ = parameters_.add("x", {kRows, kInputs}, {Init::Kind::kNormal, 1.0f});
  Parameter& weight_ = parameters_.add("up.weight", {kOutputs, kInputs}, {Init::Kind::kNormal, 0.1f});
  Parameter& bias_ = parameters_.add("up.bias", {kOutputs}, {});
  const Values dy_ = normal_values(kRows * kOutputs, 9, 1e-3f);
};

constexpr Extents kExtents[] = {{1, 1, 1}, {3, 5, 2}, {17, 9, 65}, {33, 47, 129}, {64, 96, 512}, {8, 8, 4099}};

TEST_F(Fp32Product, ErrorsAreWithinTheBounds) {
  struct Distribution {
    const char* name;
    float (*make)(float normal);
  };
  const Distribution distributions[] = {
      {"normal", [](float v) { return v; }},
      {"many magnitudes", [](float v) { return std::copysign(std::exp2(8.0f * v), v); }},
      {"one sign", [](float v) { return 1.0f + std::fabs(v); }},
      {"mantissas of ones", [](float v) { return std::copysign(0x1.fffffep0f, v); }},
      {"ties of bf16", [](float v) { return std::copysign(0x1.01fep0f, v); }},
      {"small", [](float v) { return v * 0x1p-40f; }},
      {"large", [](float v) { return v * 0x1p55f; }},
  };
  for (const Distribution& distribution : distributions) {
    for (const Extents& e : kExtents) {
      Values a = normal_values(e.m * e.k, 1), b = normal_values(e.k * e.n, 2);
      for (float& value : a) value = distribution.make(value);
      for (float& value : b) value = distribution.make(value);
      const Exact exact = exact_product(a, b, e, false, false);
      for (const Fp32Products products : kAllFp32Products) {
        expect_within_bound(product(a, b, e, products), exact, static_cast<double>(e.k), products, distribution.name);
      }
    }
  }
}

// The bounds hold in the worst case. On random numbers six products are as good as fp32, three lose some bits, and tf32
// loses more. Tensor cores cut sums off instead of rounding them (Fasi et al. 2021, Numerical behavior of NVIDIA tensor
// cores), so that errors of the same sign add up: 3.1 times the error of fp32 on an H100.
TEST_F(Fp32Product, EachIsAsMuchBetterAsItsCostSays) {
  const Extents e{64, 64, 512};
  const Values a = normal_values(e.m * e.k, 3), b = normal_values(e.k * e.n, 4);
  const Exact exact = exact_product(a, b, e, false, false);
  const Values reference(exact.c.begin(), exact.c.end());
  const auto error = [&](Fp32Products products) {
    double difference = 0.0, magnitude = 0.0;
    const Values found = product(a, b, e, products);
    for (size_t i = 0; i < found.size(); ++i) {
      difference += (found[i] - exact.c[i]) * (found[i] - exact.c[i]);
      magnitude += exact.c[i] * exact.c[i];
    }
    return std::sqrt(difference / magnitude);
  };
  const double fp32 = error(Fp32Products::kFp32), tf32 = error(Fp32Products::kTf32),
               three = error(Fp32Products::kBf16x3), six = error(Fp32Products::kBf16x6);
  EXPECT_LT(six, (host_.is_gpu() ? 5.0 : 1.5) * fp32);
  EXPECT_GT(three, 4 * fp32);
  EXPECT_LT(three, 0x1p-17);
  EXPECT_GT(tf32, 16 * three);
  EXPECT_LT(tf32, 0x1p-10);
}

TEST_F(Fp32Product, ResultsDoNotDependOnTheNumberOfThreads) {
  const Extents e{130, 190, 700};
  const Values a = normal_values(e.m * e.k, 5), b = normal_values(e.k * e.n, 6);
  for (const Fp32Products products : kAllFp32Products) {
    set_threads(1);
    const Values expected = product(a, b, e, products);
    for (const int threads : {2, 3, 7}) {
      set_threads(threads);
      EXPECT_EQ(product(a, b, e, products), expected) << name(products) << ", " << threads << " threads";
    }
  }
}

TEST_F(Fp32Product, BothOperandsMayBeTransposed) {
  const Extents e{19, 35, 67};
  const Values a = normal_values(e.m * e.k, 7), b = normal_values(e.k * e.n, 8);
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      const Exact exact = exact_product(a, b, e, trans_a, trans_b);
      for (const Fp32Products products : kAllFp32Products) {
        expect_within_bound(product(a, b, e, products, trans_a, trans_b), exact, 67, products, "transposed");
      }
    }
  }
}

// fp32's largest numbers exceed bf16's maximum, 0x1.fep127.
TEST_F(Fp32Product, LargeNumbersStayFinite) {
  const Values large = {kLargest, -kLargest, 0x1.ffp127f, 0x1.fefffep127f, 0x1.fep127f};
  for (const Fp32Products products : {Fp32Products::kBf16x3, Fp32Products::kBf16x6}) {
    const Values half = product(large, {0.5f}, {5, 1, 1}, products);
    for (size_t i = 0; i < large.size(); ++i) EXPECT_NEAR(half[i] / (0.5 * large[i]), 1.0, 0x1p-15) << name(products);
    for (const float value : product(large, {1.0f}, {5, 1, 1}, products)) EXPECT_FALSE(std::isnan(value));
  }
  EXPECT_EQ(product(large, {1.0f}, {5, 1, 1}, Fp32Products::kBf16x6), large);
  EXPECT_EQ(product(large, {0.5f}, {5, 1, 1}, Fp32Products::kBf16x6)[0], 0.5f * kLargest);
}

// As in fp32 products, an Inf keeps its sign whatever parts the other factor has.
TEST_F(Fp32Product, NonFiniteNumbersStayVisibleWhereTheyAre) {
  for (const Fp32Products products : kAllFp32Products) {
    for (const float factor : {1.0f, -3.0f, 1.0f + 0x1p-8f + 0x1p-23f, -0.1f, 0x1p-100f, kLargest}) {
      const Values found = product({kInf, -kInf, NAN, 2.0f}, {factor}, {4, 1, 1}, products);
      EXPECT_EQ(found[0], std::copysign(kInf, factor)) << name(products) << ' ' << factor;
      EXPECT_EQ(found[1], -std::copysign(kInf, factor)) << name(products) << ' ' << factor;
      EXPECT_TRUE(std::isnan(found[2])) << name(products) << ' ' << factor;
      EXPECT_EQ(product({factor}, {kInf}, {1, 1, 1}, products)[0], std::copysign(kInf, factor)) << name(products);
    }
    EXPECT_TRUE(std::isnan(product({kInf}, {0.0f}, {1, 1, 1}, products)[0])) << name(products);
    EXPECT_TRUE(std::isnan(product({NAN}, {0.0f}, {1, 1, 1}, products)[0])) << name(products);
    EXPECT_TRUE(std::isnan(product({kInf}, {NAN}, {1, 1, 1}, products)[0])) << name(products);
    EXPECT_FALSE(std::isfinite(product({kInf}, {kInf}, {1, 1, 1}, products)[0])) << name(products);
  }
}

TEST_F(Fp32Product, SubnormalNumbersAndPartsAreWithinTheBound) {
  const Extents e{9, 7, 33};
  Values a = normal_values(e.m * e.k, 9), b = normal_values(e.k * e.n, 10);
  for (float& value : b) value *= 0x1p40f;
  for (const float scale : {0x1p-105f, 0x1p-118f, 0x1p-126f, 0x1p-140f}) {
    Values small = a;
    for (float& value : small) value *= scale;
    const Exact exact = exact_product(small, b, e, false, false);
    for (const Fp32Products products : {Fp32Products::kBf16x3, Fp32Products::kBf16x6}) {
      const double largest_b = 8.0 * 0x1p40;  // 8 standard deviations
      expect_within_bound(product(small, b, e, products), exact, 33, products, "small", 0x1p-125 * largest_b);
    }
  }
}

TEST_F(Fp32Product, ALinearLayersThreeProductsAndItsBias) {
  make_layer();
  const Values x = host_.values(x_.weight), w = host_.values(weight_.weight), b = host_.values(bias_.weight);
  Exact y = exact_product(x, w, {kRows, kOutputs, kInputs}, false, true);
  for (size_t i = 0; i < y.c.size(); ++i) {
    y.c[i] += b[i % kOutputs];
    y.magnitude[i] += 8 * std::abs(b[i % kOutputs]);  // rounded in each of six additions, not divided by K
  }
  const Exact dx = exact_product(dy_, w, {kRows, kInputs, kOutputs}, false, false),
              dw = exact_product(dy_, x, {kOutputs, kInputs, kRows}, true, false);
  const Layer plain = run_layer(UniformPrecision(precision(Fp32Products::kFp32)));
  for (const Fp32Products products : kAllFp32Products) {
    const Layer found = run_layer(UniformPrecision(precision(products)));
    expect_within_bound(found.y, y, kInputs, products, "y");
    expect_within_bound(found.dx, dx, kOutputs, products, "dx");
    expect_within_bound(found.dw, dw, kRows, products, "dw");
    EXPECT_LT(testing::relative_error(found.db, plain.db), kRows * 0x1p-24) << name(products) << ": of dy as it is";
    if (products == Fp32Products::kFp32) continue;
    EXPECT_NE(found.y, plain.y) << name(products);
    EXPECT_NE(found.dx, plain.dx) << name(products);
    EXPECT_NE(found.dw, plain.dw) << name(products);
  }
}

TEST_F(Fp32Product, GradientsOfSeveralMicroBatchesAreAddedUp) {
  const Extents e{21, 13, 40};
  const Values a = normal_values(e.k * e.m, 11), b = normal_values(e.k * e.n, 12),
               before = normal_values(e.m * e.n, 13);
  Exact exact = exact_product(a, b, e, true, false);
  for (size_t i = 0; i < before.size(); ++i) {
    exact.c[i] += before[i];
    exact.magnitude[i] += std::abs(before[i]);  // K additions may round it; at most 6 do
  }
  for (const Fp32Products products : kAllFp32Products) {
    const Tensor c = host_.tensor(before, {e.m, e.n});
    multiply(*host_.tape(fp32_),
             {.a = host_.tensor(a, {e.k, e.m}),
              .b = host_.tensor(b, {e.k, e.n}),
              .c = c,
              .trans_a = Transpose::kYes,
              .mode = GradientMode::kAccumulate},
             products);
    expect_within_bound(host_.values(c), exact, static_cast<double>(e.k), products, "accumulated");
  }
}

// GELU fused into two layers' products gives the result of the three ops.
TEST_F(Fp32Product, GeluInsideOfProductsIsThatOfTheOps) {
  make_layer();
  Parameter& down = parameters_.add("down.weight", {kInputs, kOutputs}, {Init::Kind::kNormal, 0.1f});
  host_.bind(parameters_);
  host_.initialize(parameters_, 2);
  for (const Fp32Products products : kAllFp32Products) {
    const UniformPrecision policy(precision(products));
    const auto run = [&](bool fused) {
      parameters_.forget_gradients();
      Layer result;
      {
        const auto tape = host_.tape(policy);
        const Var x = leaf(*tape, x_);
        const Var y =
            fused ? linear(*tape, linear_gelu(*tape, x, weight_, &bias_, GeluForm::kErf), down, nullptr)
                  : linear(*tape, gelu(*tape, linear(*tape, x, weight_, &bias_), GeluForm::kErf), down, nullptr);
        result.y = host_.values(y.value);
        tape->backward(weighted_sum(*tape, y, normal_values(kRows * kInputs, 14)));
      }
      result.dx = host_.values(x_.gradient);
      result.dw = host_.values(weight_.gradient);
      host_.arena().rewind();
      return result;
    };
    const Layer fused = run(true), ops = run(false);
    EXPECT_LT(testing::relative_error(fused.y, ops.y), 0x1p-20) << name(products);
    EXPECT_LT(testing::relative_error(fused.dx, ops.dx), 0x1p-20) << name(products);
    EXPECT_LT(testing::relative_error(fused.dw, ops.dw), 0x1p-20) << name(products);
  }
}

TEST_F(Fp32Product, TheHeadsLossIsThatOfItsLayer) {
  make_layer();
  const Tensor targets = host_.tensor(testing::random_tokens(kRows, kOutputs, 15));
  for (const Fp32Products products : kAllFp32Products) {
    const UniformPrecision policy(precision(products));
    const auto gradient = [&](bool by_chunks) {
      parameters_.forget_gradients();
      {
        const auto tape = host_.tape(policy);
        const Var x = leaf(*tape, x_);
        const LossOutput loss = by_chunks ? linear_cross_entropy(*tape, x, weight_, targets, 16)
                                          : cross_entropy(*tape, linear(*tape, x, weight_, nullptr), targets);
        tape->backward(loss.sum);
      }
      host_.arena().rewind();
      return host_.values(x_.gradient);
    };
    const Values chunks = gradient(true), whole = gradient(false);
    // With tf32 allowed, a library may compute some of the products in fp32.
    EXPECT_LT(testing::relative_error(chunks, whole), products == Fp32Products::kTf32 ? 0x1p-10 : 0x1p-18)
        << name(products);
  }
}

// The layer named in the setting computes as if all did, the other as if none did, bit for bit.
TEST_F(Fp32Product, ReachesOnlyTheLayersThatItIsSetFor) {
  make_layer();
  for (const Fp32Products products : {Fp32Products::kTf32, Fp32Products::kBf16x3, Fp32Products::kBf16x6}) {
    testing::PrecisionByLayer policy(precision(Fp32Products::kFp32));
    policy["a"] = precision(products);
    const Layer with = run_layer(UniformPrecision(precision(products))),
                without = run_layer(UniformPrecision(precision(Fp32Products::kFp32)));
    EXPECT_TRUE(run_layer(policy, "a") == with) << name(products);
    EXPECT_TRUE(run_layer(policy, "b") == without) << name(products);
    EXPECT_FALSE(with == without) << name(products);
  }
}

TEST_F(Fp32Product, SixteenBitLayersDoNotDependOnIt) {
  make_layer();
  for (const DType low : {DType::kBF16, DType::kF16}) {
    const Layer plain = run_layer(UniformPrecision(precision(Fp32Products::kFp32, low)));
    for (const Fp32Products products : kAllFp32Products) {
      EXPECT_TRUE(run_layer(UniformPrecision(precision(products, low))) == plain) << name(products);
    }
  }
}

}  // namespace
}  // namespace mantissa
