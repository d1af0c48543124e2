// Findings from prepared rows: the recommended loss scale, against a search that rounds every gradient.
#include "tools/lab/analyze/model_analysis.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/tensor/format.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

std::vector<float> prepared_gradients(double centre, double spread) {
  std::vector<float> values;
  for (uint32_t i = 0; i < 20000; ++i) {
    const PhiloxCounter words = philox(3, {i, 0, 0, 0});
    double sum = -2.0;  // the sum of four uniform numbers: about a bell of unit width
    for (const uint32_t word : words) sum += static_cast<double>(word) * 0x1p-32;
    values.push_back(static_cast<float>((words[0] & 1 ? -1.0 : 1.0) * std::exp2(centre + spread * sum)));
  }
  return values;
}

ProbeRow row_of(const std::vector<float>& values) {
  ProbeRow row{.role = probe_role::kGradient, .tensor = "layer", .format = "fp32"};
  for (const float value : values) {
    ++row.histogram.counts[histogram_bin(magnitude_bits(value))];
    if (std::isfinite(value)) row.histogram.amax = std::max(row.histogram.amax, magnitude_bits(value));
  }
  row.losses = format_losses(row.histogram, Format::kF32, 0);
  return row;
}

ProbedStep step_of(const std::vector<float>& values, int64_t step = 0, float loss_scale = 1.0f) {
  std::vector<float> scaled = values;
  for (float& value : scaled) value *= loss_scale;
  return {.step = step, .loss_scale = loss_scale, .rows = {row_of(scaled)}};
}

struct Counted {
  int64_t zeros = 0, infinite = 0;
};

// Rounds each value to fp16.
Counted in_fp16(const std::vector<float>& values, int exponent) {
  Counted counted;
  for (const float value : values) {
    const float made = quantize(Format::kF16, std::ldexp(value, exponent), Saturation::kNo);
    counted.zeros += made == 0.0f;
    counted.infinite += std::isinf(made);
  }
  return counted;
}

// The largest scale without overflow even for values `headroom` times as large. It has the fewest underflows.
int best_scale(const std::vector<float>& values, double headroom) {
  for (int exponent = 60;; --exponent) {
    std::vector<float> larger = values;
    for (float& value : larger) value *= static_cast<float>(headroom);
    if (in_fp16(larger, exponent).infinite == 0) return exponent;
  }
}

TEST(ModelFindings, RecommendsTheScaleThatASearchFinds) {
  for (const auto& [centre, spread] : {std::pair{-20.0, 2.0}, {-30.0, 6.0}, {-12.0, 10.0}}) {
    const std::vector<float> gradients = prepared_gradients(centre, spread);
    const CheckpointFindings found = findings_of({step_of(gradients)}, {step_of(gradients)});
    ASSERT_TRUE(found.loss_scale.advice.recommended.has_value());
    const int exponent = found.loss_scale.advice.recommended->exponent;
    EXPECT_NEAR(exponent, best_scale(gradients, found.loss_scale.options.headroom), 1);
    const Counted trained = in_fp16(gradients, exponent);
    EXPECT_EQ(trained.infinite, 0);
    EXPECT_EQ(found.loss_scale.advice.recommended->losses.overflowed, 0);
    EXPECT_EQ(found.loss_scale.advice.recommended->losses.underflowed, trained.zeros) << "as predicted";
  }
}

// The default headroom of 16 gives up four powers of two on purpose, and rounding down up to one more. The scale never
// exceeds the optimum, where the largest gradient just fits.
TEST(ModelFindings, TheDefaultHeadroomStaysWithinFivePowersBelowTheOptimum) {
  const double room = std::log2(kLossScaleOptions.headroom);
  for (const double spread : {0.5, 3.0, 9.0}) {
    for (int quarter = 0; quarter < 8; ++quarter) {
      const std::vector<float> gradients = prepared_gradients(-18.0 + 0.25 * quarter, spread);
      const CheckpointFindings found = findings_of({}, {step_of(gradients, 0, 1024.0f)});
      ASSERT_TRUE(found.loss_scale.advice.recommended.has_value());
      const int below = best_scale(gradients, 1.0) - found.loss_scale.advice.recommended->exponent;
      EXPECT_GE(below, 0) << spread << " " << quarter;
      EXPECT_LE(below, room + 1.0) << spread << " " << quarter;
    }
  }
}

TEST(ModelFindings, PercentileAndHeadroomAreTheFormulas) {
  std::vector<float> gradients(1000, 0x1p-10f);
  gradients[0] = 1.0f;
  const auto exponent = [&](const StaticScaleOptions& options) {
    return findings_of({}, {step_of(gradients)}, options).loss_scale.advice.recommended.value().exponent;
  };
  EXPECT_EQ(exponent({.percentile = 100.0, .headroom = 1.0}), 15) << "floor(log2(65504))";
  EXPECT_EQ(exponent({.percentile = 100.0, .headroom = 8.0}), 12);
  EXPECT_EQ(exponent({.percentile = 99.0, .headroom = 1.0}), 25) << "the largest one is outside";
}

// At the ends of fp32's scales, the headroom is whatever the last scale leaves.
TEST(ModelFindings, TellsTheHeadroomThatIsLeft) {
  const auto left = [](float gradient, double headroom) {
    const auto found = findings_of({}, {step_of({gradient})}, {.percentile = 100.0, .headroom = headroom}).loss_scale;
    return std::pair(found.advice.recommended.value().exponent, found.headroom);
  };
  EXPECT_EQ(left(1.0f, 16.0), std::pair(11, 16.0));
  EXPECT_EQ(left(0x1p-100f, 0x1p-64), std::pair(127, 65504.0 * 0x1p-27)) << "more than was asked for";
  EXPECT_EQ(left(0x1p104f, 0x1p64), std::pair(-126, 65504.0 * 0x1p22)) << "less";
}

TEST(ModelFindings, RecommendsNoScaleWithWhichMostGradientsVanish) {
  const auto advice = [](const std::vector<float>& gradients, const StaticScaleOptions& options) -> ScaleAdvice {
    return findings_of({}, {step_of(gradients)}, options).loss_scale.advice;
  };
  // fp16 reaches from 2^-25 (half of its smallest number) to 2^15: 40 powers of two.
  std::vector<float> gradients(100, 0x1p-20f);
  gradients[0] = 0x1p21f;
  const StaticScaleOptions all{.percentile = 100.0, .headroom = 1.0};
  const ScaleAdvice none = advice(gradients, all);
  EXPECT_FALSE(none.recommended.has_value());
  EXPECT_EQ(
      none.why_none,
      "99 % of the gradients of activations become 0 in fp16 even at 2^-6, and larger scales leave no room for the "
      "largest ones");
  for (size_t i = 0; i < 50; ++i) gradients[i] = 0x1p21f;
  EXPECT_EQ(advice(gradients, all).recommended.value().losses.underflowed, 50) << "as many survive";
  EXPECT_EQ(advice(gradients, all).why_none, "");
  gradients[50] = 0x1p-20f, gradients[49] = 0x1p-20f;
  EXPECT_FALSE(advice(gradients, all).recommended.has_value()) << "most vanish";
}

TEST(ModelFindings, SaysWhyNoScaleFollows) {
  const auto why = [](const std::vector<float>& gradients, double percentile) {
    return findings_of({}, {step_of(gradients)}, {.percentile = percentile, .headroom = 1.0})
        .loss_scale.advice.why_none;
  };
  std::vector<float> gradients(100, 1.0f);
  EXPECT_EQ(why(gradients, 100.0), "");
  for (size_t i = 0; i < 5; ++i) gradients[i] = 0.0f;
  EXPECT_EQ(why(gradients, 1e-9),
            "5 % of the gradients of activations are 0, and so is their percentile 1e-09: use a larger --percentile");
  for (size_t i = 5; i < 7; ++i) gradients[i] = INFINITY;
  EXPECT_EQ(why(gradients, 99.0), "2 % of the gradients of activations are not finite");
  EXPECT_NE(why(gradients, 3.0).find("are 0, and so is their percentile 3"), std::string::npos);
  EXPECT_EQ(why(std::vector<float>(100, 0.0f), 100.0), "all gradients of activations are 0");
}

// A single step differs from the mean, so the report also names the largest.
TEST(ModelFindings, PredictsEveryStep) {
  const std::vector<float> wide = prepared_gradients(-20.0, 12.0), narrow = prepared_gradients(-12.0, 3.0);
  const LossScaleFindings found = findings_of({}, {step_of(wide, 0, 256.0f), step_of(narrow, 1, 256.0f)}).loss_scale;
  ASSERT_TRUE(found.advice.recommended.has_value());
  ASSERT_EQ(found.by_step.size(), 2u);
  const int64_t zeros[] = {in_fp16(wide, found.advice.recommended->exponent).zeros,
                           in_fp16(narrow, found.advice.recommended->exponent).zeros};
  EXPECT_EQ(found.by_step[0].underflowed, zeros[0]);
  EXPECT_EQ(found.by_step[1].underflowed, zeros[1]);
  EXPECT_EQ(found.advice.recommended->losses.underflowed, zeros[0] + zeros[1]);
  EXPECT_GT(zeros[0], zeros[1]);
  EXPECT_EQ(found.largest_underflow(), static_cast<double>(zeros[0]) / static_cast<double>(wide.size()));
}

TEST(ModelFindings, TheCurveIsWhatRoundingGivesAtEveryScale) {
  const std::vector<float> gradients = prepared_gradients(-14.0, 8.0);
  const LossScaleFindings found = findings_of({step_of(gradients)}, {step_of(gradients)}).loss_scale;
  for (int exponent = kMinCurveExponent; exponent <= kMaxCurveExponent; exponent += 4) {
    const FormatLosses& losses = found.curve.at(static_cast<size_t>(exponent - kMinCurveExponent));
    const Counted counted = in_fp16(gradients, exponent);
    EXPECT_EQ(losses.underflowed, counted.zeros) << exponent;
    EXPECT_EQ(losses.overflowed, counted.infinite) << exponent;
  }
}

// Steps with other loss scales give the same findings about gradients.
TEST(ModelFindings, TakesTheLossScaleOut) {
  const std::vector<float> gradients = prepared_gradients(-16.0, 4.0);
  const auto once = findings_of({}, {step_of(gradients), step_of(gradients, 1)}).loss_scale;
  const auto scaled = findings_of({}, {step_of(gradients, 0, 1024.0f), step_of(gradients, 1, 0.5f)}).loss_scale;
  EXPECT_EQ(scaled.curve, once.curve);
  ASSERT_TRUE(scaled.advice.recommended.has_value());
  EXPECT_EQ(scaled.advice.recommended->exponent, once.advice.recommended->exponent);
}

TEST(ModelFindings, NothingIsRecommendedForNothing) {
  EXPECT_FALSE(findings_of({}, {step_of(std::vector<float>(10, 0.0f))}).loss_scale.advice.recommended.has_value());
  EXPECT_FALSE(findings_of({}, {step_of({1.0f, INFINITY})}).loss_scale.advice.recommended.has_value());
}

TEST(ModelFindings, AddsUpTheSteps) {
  const CheckpointFindings found = findings_of({step_of({1.0f, 0.0f}, 4), step_of({3.0f, 2.0f, NAN}, 5)}, {});
  EXPECT_EQ(found.steps, (std::vector<int64_t>{5, 6}));
  ASSERT_EQ(found.tensors.size(), 1u);
  EXPECT_EQ(found.tensors[0].losses.elements, 5);
  EXPECT_EQ(found.tensors[0].losses.zeros, 1);
  EXPECT_EQ(found.tensors[0].losses.non_finite, 1);
  EXPECT_EQ(found.tensors[0].amaxes, (std::vector<double>{1.0, 3.0}));
}

// Gradients of a skipped step are not used.
TEST(ModelFindings, SkippedStepsOnlyTellWhatWasNotFinite) {
  ProbedStep skipped = step_of({1024.0f, INFINITY, NAN}, 1);
  skipped.applied = false;
  ProbeRow product{.role = "wgrad", .tensor = "layer", .format = "bf16 x bf16"};
  product.error = {.elements = 1, .non_finite = 1};
  skipped.rows.push_back(product);
  const auto clean = step_of({1.0f, 0.5f});
  const CheckpointFindings found = findings_of({skipped, clean}, {skipped, clean});
  EXPECT_EQ(found.skipped, 1);
  ASSERT_EQ(found.tensors.size(), 1u);
  EXPECT_EQ(found.tensors[0].losses, findings_of({clean}, {}).tensors[0].losses);
  EXPECT_EQ(found.tensors[0].non_finite_when_skipped, 2);
  EXPECT_EQ(found.tensors[0].amaxes.size(), 2u);
  ASSERT_EQ(found.products.size(), 1u);
  EXPECT_EQ(found.products[0].error, ErrorSums());
  ASSERT_TRUE(found.loss_scale.advice.recommended.has_value());
  EXPECT_EQ(found.loss_scale.advice.recommended->exponent,
            findings_of({}, {clean}).loss_scale.advice.recommended->exponent);
  EXPECT_EQ(found.loss_scale.skipped, 1);
  EXPECT_EQ(found.loss_scale.by_step.size(), 1u);
}

// A skipped step has no update rows.
TEST(ModelFindings, MagnitudesByStepAreInLineWithTheSteps) {
  std::vector<ProbedStep> steps;
  for (int64_t step = 0; step < 4; ++step) {
    steps.push_back(step_of({2.0f}, step));
    steps.back().applied = step == 1 || step == 2;
    if (!steps.back().applied) continue;
    steps.back().rows.push_back(row_of({static_cast<float>(step)}));
    steps.back().rows.back().role = probe_role::kUpdate;
  }
  const CheckpointFindings found = findings_of(steps, {});
  ASSERT_EQ(found.tensors.size(), 2u);
  const std::vector<double>& amaxes = found.tensors[1].amaxes;
  ASSERT_EQ(amaxes.size(), 4u);
  EXPECT_TRUE(std::isnan(amaxes[0]) && std::isnan(amaxes[3]));
  EXPECT_EQ(amaxes[1], 1.0);
  EXPECT_EQ(amaxes[2], 2.0);
  EXPECT_EQ(found.tensors[0].amaxes.size(), 4u);
}

// An fp16 tensor has lost its small values before they are counted.
TEST(ModelFindings, TakesWhatFp16LosesFromMagnitudesThatHaveAll) {
  ProbedStep stored = step_of({1.0f, 0.0f, 0.0f});
  stored.rows[0].format = "fp16";
  CheckpointFindings found = findings_of({stored}, {});
  take_magnitudes({stored}, {step_of({1.0f, 0x1p-26f, 0x1p-20f})}, found);
  EXPECT_EQ(found.tensors[0].losses.underflowed, 1);
  EXPECT_EQ(found.tensors[0].losses.subnormal, 1);
  EXPECT_EQ(found.tensors[0].losses.zeros, 0);
}

// A step that overflows in fp16 does not overflow in fp32. Its magnitudes had a scale that no update used.
TEST(ModelFindings, TakesNoMagnitudesOfStepsThatWereSkipped) {
  std::vector<ProbedStep> stored = {step_of({INFINITY, 1.0f}, 0, 0x1p20f), step_of({1.0f, 0.5f}, 1, 0x1p10f)};
  const std::vector<ProbedStep> exact = {step_of({1.0f, 0x1p-19f}, 0, 0x1p20f),
                                         step_of({0x1p-9f, 0x1p-36f}, 1, 0x1p10f)};
  for (ProbedStep& step : stored) step.rows[0].format = "fp16";
  stored[0].applied = false;
  CheckpointFindings found = findings_of(stored, {});
  take_magnitudes(stored, exact, found);
  EXPECT_EQ(found.tensors[0].losses, (FormatLosses{.elements = 2, .underflowed = 1}));
  EXPECT_EQ(found.tensors[0].non_finite_when_skipped, 1) << "as it was in fp16";

  stored[1].applied = false;
  found = findings_of(stored, {});
  take_magnitudes(stored, exact, found);
  EXPECT_EQ(found.tensors[0].losses, FormatLosses());
  EXPECT_EQ(found.tensors[0].histogram, ExponentHistogram());
  stored[1].loss_scale = 1.0f;
  EXPECT_THROW(take_magnitudes(stored, exact, found), ContractError) << "another loss scale says something else";
}

TEST(ModelFindings, NoiseCostsAShareOfTheBatch) {
  ProbeRow row{.role = "wgrad", .tensor = "layer", .format = "bf16 x bf16"};
  row.error = {
      .elements = 4, .non_finite = 0, .reference_squares = 9.0, .squares = 9.0, .products = 9.0, .error_squares = 1.0};
  row.batch_noise = 3.0;
  const CheckpointFindings found = findings_of({{.step = 0, .rows = {row}}, {.step = 1, .rows = {row}}}, {});
  ASSERT_EQ(found.products.size(), 1u);
  EXPECT_DOUBLE_EQ(found.products[0].noise_ratio().value(), 1.0 / 3.0);
  EXPECT_DOUBLE_EQ(found.products[0].equivalent_batch_loss().value(), 0.25) << "as noisy as a batch of three quarters";
}

}  // namespace
}  // namespace mantissa
