// Range, errors and underflow of the CPU's roundings, against the formats' definitions and the distributions.
#include "tools/lab/analyze/format_trials.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/backend/registry.h"

namespace mantissa {
namespace {

class CpuRoundings {
 public:
  CpuRoundings() : cpu_(create_backend("cpu")), stream_(cpu_->create_stream()) {
    roundings_ = make_roundings(*cpu_, *stream_, *cpu_);
  }

  const std::vector<Rounding>& all() const { return roundings_; }
  const Rounding& named(const std::string& name) const {
    for (const Rounding& rounding : roundings_) {
      if (rounding.name == name) return rounding;
    }
    ADD_FAILURE() << "no rounding is named " << name;
    return roundings_.front();
  }

 private:
  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<Stream> stream_;
  std::vector<Rounding> roundings_;
};

TEST(FormatRange, IsThatOfTheDefinition) {
  const CpuRoundings roundings;
  int compared = 0;
  for (const Rounding& rounding : roundings.all()) {
    if (rounding.scaling) continue;
    EXPECT_EQ(difference_from_definition(measure_range(rounding), rounding.format), "") << rounding.name;
    ++compared;
  }
  EXPECT_EQ(compared, static_cast<int>(std::size(kAllFormats)));
}

TEST(FormatRange, OverflowBeginsHalfWayBehindTheMaximum) {
  const CpuRoundings roundings;
  const auto overflow_from = [&](const char* name) { return measure_range(roundings.named(name)).overflow_from; };
  EXPECT_EQ(overflow_from("fp32"), std::nullopt);
  EXPECT_EQ(overflow_from("fp16"), 65520.0);
  EXPECT_EQ(overflow_from("bf16"), 0x1.ffp127);
  EXPECT_EQ(overflow_from("tf32"), 0x1.ffep127);
  EXPECT_EQ(overflow_from("e5m2"), 61440.0);
  EXPECT_EQ(overflow_from("e4m3"),
            static_cast<double>(std::nextafterf(464.0f, 1e3f)));  // 464 rounds to 448, the even code
  EXPECT_EQ(overflow_from("e2m1"), 7.0);                          // saturates
}

TEST(FormatRange, ZeroIsWhatHalfOfTheSmallestNumberBecomes) {
  const CpuRoundings roundings;
  const auto underflow_at = [&](const char* name) { return measure_range(roundings.named(name)).underflow_at; };
  EXPECT_EQ(underflow_at("fp32"), 0.0);
  EXPECT_EQ(underflow_at("bf16"), 0x1p-134);
  EXPECT_EQ(underflow_at("fp16"), 0x1p-25);
  EXPECT_EQ(underflow_at("e4m3"), 0x1p-10);
  EXPECT_EQ(underflow_at("e5m2"), 0x1p-17);
  EXPECT_EQ(underflow_at("e2m1"), 0.25);
}

TEST(FormatRange, DynamicRange) {
  const CpuRoundings roundings;
  EXPECT_NEAR(measure_range(roundings.named("fp16")).dynamic_range_db(), 240.8, 0.05);  // 20 log10(65504 / 2^-24)
  EXPECT_NEAR(measure_range(roundings.named("e4m3")).dynamic_range_db(), 107.2, 0.05);
}

// A device that flushes subnormals is distinguished from its claimed format.
TEST(FormatRange, ShowsADeviceThatDiffers) {
  const CpuRoundings roundings;
  Rounding flushing = roundings.named("fp16");
  flushing.round = [exact = flushing.round](const std::vector<float>& values) {
    std::vector<float> stored = exact(values);
    for (float& value : stored) value = std::fabs(value) < 0x1p-14f ? 0.0f : value;
    return stored;
  };
  const FormatRange range = measure_range(flushing);
  EXPECT_EQ(range.min_positive, 0x1p-14);
  EXPECT_EQ(difference_from_definition(range, Format::kF16),
            "the smallest number is 6.1035156e-05, expected 5.9604645e-08");
}

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
  for (const auto& [name, half_step] :
       {Expected{"fp32", 0x1p-24}, Expected{"tf32", 0x1p-11}, Expected{"bf16", 0x1p-8}, Expected{"fp16", 0x1p-11},
        Expected{"e4m3", 0x1p-4}, Expected{"e5m2", 0x1p-3}}) {
    const ErrorRow row = row_of(measure_errors(roundings.named(name), kSamples), 0);  // 1 ... 10
    // The error is largest just above a power of two: half a step of 1 by 1 + half a step.
    // Values are rounded to fp32 before.
    const double before = half_step > 0x1p-24 ? 0x1p-24 : 0.0;
    EXPECT_LE(row.max, half_step / (1.0 + half_step) * (1 + 1e-9) + before) << name;
    EXPECT_GT(row.max, 0.99 * half_step / (1.0 + half_step)) << name;
    EXPECT_LT(row.p95, row.p99) << name;
    EXPECT_LT(row.p99, row.max) << name;
    // Errors are uniform up to half a step of the binade. The mean of |error| / value is a quarter of a step times the
    // mean of 1 / fraction, which is 1 / (2 ln 2) for fractions uniform in the logarithm. A decade has 3.3 binades.
    // Depending on which third of a binade it repeats, the mean moves by up to 3 %, and a coarse format is not uniform.
    EXPECT_NEAR(row.mean / (half_step / 2 / (2 * std::log(2.0))), 1.0, 0.06) << name;
    EXPECT_EQ(row.zeros, 0.0) << name;
    EXPECT_EQ(row.overflows, 0.0) << name;
  }
}

TEST(FormatErrors, CountsZerosAndOverflows) {
  const CpuRoundings roundings;
  // Half of fp16's smallest number is 2^-25 = 2.98e-8; log10(2.98) of the decade lies below it.
  const ErrorRow tiny = row_of(measure_errors(roundings.named("fp16"), kSamples), -8);
  EXPECT_NEAR(tiny.zeros, std::log10(0x1p-25 / 1e-8), 0.01);
  EXPECT_EQ(tiny.max, 1.0);
  const ErrorRow small = row_of(measure_errors(roundings.named("e2m1"), kSamples), -8);
  EXPECT_EQ(small.zeros, 1.0);
  EXPECT_EQ(small.mean, 1.0);
  // e2m1 saturates: all of 10 ... 100 become 6, and from 7 on that is not the nearest number.
  const std::vector<ErrorRow> rows = measure_errors(roundings.named("e2m1"), kSamples);
  EXPECT_EQ(row_of(rows, 1).overflows, 1.0);
  EXPECT_TRUE(std::isnan(row_of(rows, 1).max));
  EXPECT_NEAR(row_of(rows, 0).overflows, 1.0 - std::log10(7.0), 0.01);
  EXPECT_NEAR(row_of(rows, 0).max, 0.2, 1e-4);  // half-way between 1 and 1.5, 2 and 3, 4 and 6
}

// Scales follow the values, so errors do not depend on their size. A decade has three and a third binades. The third
// moves the mean by up to 3 % either way.
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

// Half of e2m1's largest number is the largest gradient: none is beyond it.
TEST(Underflow, SaturationCountsAsOverflow) {
  const CpuRoundings roundings;
  for (const UnderflowRow& row : measure_underflow(roundings.named("e2m1"), 4096)) {
    EXPECT_EQ(row.scaled_overflow, 0.0) << row.decade;
  }
  Rounding shifted = roundings.named("e2m1");
  shifted.round = [exact =
                       shifted.round](std::vector<float> values) {  // a format with numbers from 2^-8 times 1/2 to 6
    for (float& value : values) value *= 0x1p8f;
    std::vector<float> stored = exact(values);
    for (float& value : stored) value *= 0x1p-8f;
    return stored;
  };
  // With the scale for 6 its largest number, 6 / 256, is exceeded by most gradients.
  EXPECT_GT(measure_underflow(shifted, 4096).front().scaled_overflow, 0.9);
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
