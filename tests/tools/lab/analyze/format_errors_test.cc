// Errors and underflow against what the formats' definitions and the distributions give.
#include "tools/lab/analyze/format_errors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/lab/analyze/cpu_roundings.h"

namespace mantissa {
namespace {

using testing::CpuRoundings;

constexpr int64_t kSamples = 65536;

const ErrorRow& row_of(const std::vector<ErrorRow>& rows, int decade) {
  return rows.at(static_cast<size_t>(decade - kFirstErrorDecade));
}

TEST(FormatErrors, NormalNumbersAreOffByAtMostHalfAStep) {
  const CpuRoundings roundings;
  struct Expected {
    const char* name;
    double half_step;
  };
  for (const auto& [name, half_step] : {Expected{"tf32", 0x1p-11}, Expected{"bf16", 0x1p-8}, Expected{"fp16", 0x1p-11},
                                        Expected{"e4m3", 0x1p-4}, Expected{"e5m2", 0x1p-3}}) {
    const ErrorRow row = row_of(measure_errors(roundings.named(name), kSamples), 0);  // 1 ... 10
    // Just above a power of two the error is the largest, half a step of 1 by 1 + half a step.
    EXPECT_LE(row.max, half_step / (1.0 + half_step) * (1 + 1e-6)) << name;
    EXPECT_GT(row.max, 0.99 * half_step / (1.0 + half_step)) << name;
    EXPECT_LT(row.p95, row.p99) << name;
    EXPECT_LT(row.p99, row.max) << name;
    // Errors are uniform up to half a step of the binade: the mean of |error| / value is a quarter of a step times the
    // mean of 1 / fraction, which is 1 / (2 ln 2) for fractions that are uniform in the logarithm. A decade is 3.3
    // binades: which third of one it has once more moves the mean by up to 3 %, and a coarse format is not uniform.
    EXPECT_NEAR(row.mean / (half_step / 2 / (2 * std::log(2.0))), 1.0, 0.06) << name;
    EXPECT_EQ(row.zeros, 0.0) << name;
    EXPECT_EQ(row.overflows, 0.0) << name;
  }
}

TEST(FormatErrors, Fp32IsExact) {
  const CpuRoundings roundings;
  for (const ErrorRow& row : measure_errors(roundings.named("fp32"), 1000)) {
    EXPECT_EQ(row.max, 0.0);
    EXPECT_EQ(row.zeros, 0.0);
  }
}

TEST(FormatErrors, CountsZerosAndOverflows) {
  const CpuRoundings roundings;
  // Half of fp16's smallest number is 2^-25 = 2.98e-8, and log10(2.98) of the decade lies below it.
  const ErrorRow tiny = row_of(measure_errors(roundings.named("fp16"), kSamples), -8);
  EXPECT_NEAR(tiny.zeros, std::log10(0x1p-25 / 1e-8), 0.01);
  EXPECT_EQ(tiny.max, 1.0);
  const ErrorRow small = row_of(measure_errors(roundings.named("e2m1"), kSamples), -8);
  EXPECT_EQ(small.zeros, 1.0);
  EXPECT_EQ(small.mean, 1.0);
  // e2m1 saturates: nothing is beyond, but all of 10 ... 100 is 6.
  const ErrorRow large = row_of(measure_errors(roundings.named("e2m1"), kSamples), 1);
  EXPECT_EQ(large.overflows, 0.0);
  EXPECT_NEAR(large.max, 0.94, 0.001);
}

// Scales follow the values: the error does not depend on their size, but for the third of a binade that a decade has
// beside three whole ones, which moves the mean by up to 3 % either way.
TEST(FormatErrors, ScaledFormatsHoldEveryDecadeAlike) {
  const CpuRoundings roundings;
  for (const char* name : {"e4m3 current", "e5m2 current", "e4m3 block", "mxfp8", "nvfp4"}) {
    const std::vector<ErrorRow> rows = measure_errors(roundings.named(name), kSamples);
    for (const ErrorRow& row : rows) {
      EXPECT_EQ(row.zeros, 0.0) << name;
      EXPECT_EQ(row.overflows, 0.0) << name;
      EXPECT_NEAR(row.mean / rows.front().mean, 1.0, 0.07) << name << " 1e" << row.decade;
    }
  }
}

TEST(Underflow, IsWhatTheNormalDistributionHasBelowTheThreshold) {
  const CpuRoundings roundings;
  for (const UnderflowRow& row : measure_underflow(roundings.named("fp16"), kSamples)) {
    const double deviation = std::pow(10.0, row.decade);
    const auto below = [&](double threshold) { return std::erf(threshold / deviation / std::sqrt(2.0)); };
    EXPECT_NEAR(row.underflow, below(0x1p-25), 0.01) << row.decade;
    EXPECT_NEAR(row.subnormal, below(0x1p-14), 0.01) << row.decade;
  }
}

TEST(Underflow, TheRecommendedScaleIsTheLargestThatLeavesTheHeadroom) {
  const CpuRoundings roundings;
  for (const UnderflowRow& row : measure_underflow(roundings.named("fp16"), kSamples)) {
    EXPECT_EQ(row.scaled_overflow, 0.0) << row.decade;
    if (row.underflow == 0.0) {
      EXPECT_EQ(row.loss_scale, 1.0);
      continue;
    }
    EXPECT_LT(row.scaled_underflow, 1e-4) << row.decade;
    // 65536 normal values reach some 4.3 deviations: the scaled amax is below 65504 / 2 by less than a factor of 2.
    const double amax = 4.3 * std::pow(10.0, row.decade) * row.loss_scale;
    EXPECT_GT(amax, 65504.0 / kHeadroom / 2.0 / 1.3) << row.decade;
    EXPECT_LT(amax, 65504.0 / kHeadroom * 1.3) << row.decade;
  }
  EXPECT_EQ(recommended_scale(65504.0, 1.0), 16384.0);
  EXPECT_EQ(recommended_scale(65504.0, 65504.0 / 2), 1.0);
  EXPECT_EQ(recommended_scale(65504.0, 65504.0), 0.5);
}

TEST(Underflow, FormatsWithTheRangeOfFp32HaveNone) {
  const CpuRoundings roundings;
  for (const UnderflowRow& row : measure_underflow(roundings.named("bf16"), 4096)) {
    EXPECT_EQ(row.underflow, 0.0);
    EXPECT_EQ(row.loss_scale, 1.0);
  }
}

}  // namespace
}  // namespace mantissa
