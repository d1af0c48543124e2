// Largest errors of the vector functions against double, on every instruction set.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/core/cpu/simd_math_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/cpu/simd_math-inl.h"
#include "tests/core/kernels/device_under_test.h"

#ifndef MANTISSA_TESTS_CORE_CPU_SIMD_MATH_TEST_ONCE_
#define MANTISSA_TESTS_CORE_CPU_SIMD_MATH_TEST_ONCE_
namespace mantissa::cpu {

struct Results {
  explicit Results(size_t n) : exp(n), sigmoid(n), complement(n), tanh(n), slope(n), cdf(n), density(n) {}
  std::vector<float> exp, sigmoid, complement, tanh, slope, cdf, density;
};

}  // namespace mantissa::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

void evaluate(const std::vector<float>& x, Results& out) {
  for_each_vector(static_cast<int64_t>(x.size()), [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto v = load(x.data() + i, count);
    store(exp(v), out.exp.data() + i, count);
    const TanhPair t = tanh(v);
    store(t.value, out.tanh.data() + i, count);
    store(t.slope, out.slope.data() + i, count);
    const SigmoidPair s = sigmoid(v);
    store(s.value, out.sigmoid.data() + i, count);
    store(s.complement, out.complement.data() + i, count);
    const Normal n = normal(v);
    store(n.cdf, out.cdf.data() + i, count);
    store(n.density, out.density.data() + i, count);
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(evaluate);

namespace {

Results evaluate_all(const std::vector<float>& x) {
  Results out(x.size());
  HWY_DYNAMIC_DISPATCH(evaluate)(x, out);
  return out;
}

// Error in units of the exact result's last place (below the normal range: of the smallest subnormal).
double ulps(float actual, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::abs(static_cast<double>(actual) - exact) / std::ldexp(1.0, exponent - 23);
}

std::vector<float> grid(double low, double high, int count) {
  std::vector<float> x;
  for (int i = 0; i <= count; ++i) x.push_back(static_cast<float>(low + (high - low) * i / count));
  return x;
}

#if HWY_ARCH_X86
// HWY_DISABLED_TARGETS is empty but in quick_sanitizers (.bazelrc), which compiles for fewer sets.
TEST(SimdMath, KernelsAreCompiledForThreeInstructionSets) {
  EXPECT_EQ(HWY_TARGETS, (HWY_SSE4 | HWY_AVX2 | HWY_AVX3) & ~(HWY_DISABLED_TARGETS));
}
#endif

TEST(SimdMath, ExpIsWithinOneAndAHalfUlp) {
  const std::vector<float> x = grid(-87.336, 88.0, 400000);
  kernel_test::device_under_test().on_each_variant([&] {
    const Results out = evaluate_all(x);
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i)
      worst = std::max(worst, ulps(out.exp[i], std::exp(static_cast<double>(x[i]))));
    EXPECT_LE(worst, 1.5);
  });
}

TEST(SimdMath, SigmoidAndItsComplementAreWithinFourUlp) {
  const std::vector<float> x = grid(-87.0, 87.0, 400000);
  kernel_test::device_under_test().on_each_variant([&] {
    const Results out = evaluate_all(x);
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double e = std::exp(static_cast<double>(x[i]));
      worst = std::max({worst, ulps(out.sigmoid[i], e / (1.0 + e)), ulps(out.complement[i], 1.0 / (1.0 + e))});
    }
    EXPECT_LE(worst, 4.0);
  });
}

TEST(SimdMath, TanhAndItsSlopeKeepRelativeAccuracy) {
  std::vector<float> x = grid(-40.0, 40.0, 200000), small = grid(-1.0, 1.0, 200000);
  x.insert(x.end(), small.begin(), small.end());
  kernel_test::device_under_test().on_each_variant([&] {
    const Results out = evaluate_all(x);
    double value = 0.0, slope = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i], cosh = std::cosh(v);
      value = std::max(value, ulps(out.tanh[i], std::tanh(v)));
      slope = std::max(slope, ulps(out.slope[i], 1.0 / (cosh * cosh)));
    }
    EXPECT_LE(value, 3.0);
    EXPECT_LE(slope, 8.0);
  });
}

TEST(SimdMath, NormalDistributionKeepsRelativeAccuracyInItsTail) {
  const std::vector<float> x = grid(-13.0, 13.0, 400000);
  kernel_test::device_under_test().on_each_variant([&] {
    const Results out = evaluate_all(x);
    double worst = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i];
      const double cdf = 0.5 * std::erfc(-v * M_SQRT1_2), density = std::exp(-0.5 * v * v) / std::sqrt(2.0 * M_PI);
      const double allowed = 4.0 + 0.5 * v * v;
      worst = std::max({worst, ulps(out.cdf[i], cdf) / allowed, ulps(out.density[i], density) / allowed});
    }
    EXPECT_LE(worst, 1.0);
  });
}

TEST(SimdMath, ExpBelowTheNormalRangeIsZero) {
  std::vector<float> x = grid(-1000.0, -87.4, 1000);
  x.insert(x.end(), {-1e10f, -3e38f, -std::numeric_limits<float>::infinity()});
  kernel_test::device_under_test().on_each_variant([&] {
    for (const float value : evaluate_all(x).exp) EXPECT_EQ(value, 0.0f);
  });
}

TEST(SimdMath, SpecialValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> nans = {std::bit_cast<float>(0x7fc00000u), std::bit_cast<float>(0x7fffffffu),
                                   std::bit_cast<float>(0xffc00001u), std::bit_cast<float>(0x7f800001u)};
  kernel_test::device_under_test().on_each_variant([&] {
    const Results of_nan = evaluate_all(nans);
    for (size_t i = 0; i < nans.size(); ++i) {
      EXPECT_TRUE(std::isnan(of_nan.exp[i]) && std::isnan(of_nan.sigmoid[i]) && std::isnan(of_nan.complement[i])) << i;
      EXPECT_TRUE(std::isnan(of_nan.tanh[i]) && std::isnan(of_nan.slope[i])) << i;
      EXPECT_TRUE(std::isnan(of_nan.cdf[i]) && std::isnan(of_nan.density[i])) << i;
    }
    const Results out = evaluate_all({0.0f, kInf, -kInf, 3e38f, -3e38f});
    EXPECT_EQ(out.exp, (std::vector<float>{1.0f, kInf, 0.0f, kInf, 0.0f}));
    EXPECT_EQ(out.tanh, (std::vector<float>{0.0f, 1.0f, -1.0f, 1.0f, -1.0f}));
    EXPECT_EQ(out.slope, (std::vector<float>{1.0f, 0.0f, 0.0f, 0.0f, 0.0f}));
    EXPECT_EQ(out.sigmoid, (std::vector<float>{0.5f, 1.0f, 0.0f, 1.0f, 0.0f}));
    EXPECT_EQ(out.complement, (std::vector<float>{0.5f, 0.0f, 1.0f, 0.0f, 1.0f}));
    EXPECT_EQ(out.cdf, (std::vector<float>{0.5f, 1.0f, 0.0f, 1.0f, 0.0f}));
    EXPECT_EQ(std::vector<float>(out.density.begin() + 1, out.density.end()), std::vector<float>(4, 0.0f));
  });
}

}  // namespace
}  // namespace mantissa::cpu
#endif  // HWY_ONCE
