// The verdict on prepared findings: its contents, and that the advice changes something at the place of the finding.
#include "tools/lab/analyze/model_analysis.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "tests/tools/run/unwrapped.h"
#include "tools/lab/analyze/analyze_verbs.h"

namespace mantissa {
namespace {

constexpr int64_t kSteps = 4;

TensorFindings tensor_of(const std::string& role, const std::string& format, const FormatLosses& losses,
                         const std::string& layer = "blocks.0.mlp.up") {
  TensorFindings found;
  found.role = role, found.tensor = layer, found.format = format;
  found.losses = losses;
  return found;
}

ProductFindings product_of(const std::string& product, const std::string& formats, const ErrorSums& error,
                           double batch_noise = 0.0) {
  ProductFindings found;
  found.role = product, found.tensor = "blocks.0.mlp.up", found.format = formats;
  found.error = error, found.batch_noise = batch_noise;
  return found;
}

struct Setting {
  DType compute = DType::kBF16;
  ScalerChoice scaler = ScalerChoice::kAuto;
  int32_t margin = 0;
};

// One layer whose products are stored in the compute dtype.
ModelAnalysis analysis_of(const Setting& setting, std::vector<TensorFindings> tensors,
                          std::vector<ProductFindings> products = {}) {
  ModelAnalysis analysis;
  analysis.config.precision.compute = setting.compute;
  analysis.config.precision.delayed.margin = setting.margin;
  analysis.config.scaler.mode = setting.scaler;
  analysis.config.resolve_scaler_mode();
  tensors.push_back(tensor_of(probe_role::kOutput, std::string(name(setting.compute)), {.elements = 1}));
  analysis.checkpoints.push_back({.config = analysis.config,
                                  .name = "early",
                                  .steps = std::vector<int64_t>(kSteps, 1),
                                  .tensors = std::move(tensors),
                                  .products = std::move(products)});
  return analysis;
}

std::string told(const ModelAnalysis& analysis) {
  return fmt::format("{}\n", fmt::join(verdict_of(analysis).lines, "\n"));
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr FormatLosses kMostUnderflow{.elements = 8192, .underflowed = 6144};
constexpr FormatLosses kHalfOverflows{.elements = 8192, .overflowed = 4096};
constexpr FormatLosses kMostSubnormal{.elements = 8192, .subnormal = 8000};
constexpr FormatLosses kSomeBad{.elements = 8192, .non_finite = 3};
// 3 dB.
constexpr ErrorSums kNoisy{
    .elements = 4, .non_finite = 0, .reference_squares = 2.0, .squares = 2.0, .products = 2.0, .error_squares = 1.0};

struct Case {
  std::string role, format;
  FormatLosses losses;
  Setting setting;
  std::string expected, unwanted;
};

TEST(ModelVerdict, AdviceFitsTheFormatInUse) {
  const Setting bf16, auto_fp16{.compute = DType::kF16}, fp16{.compute = DType::kF16, .scaler = ScalerChoice::kDynamic},
      static_fp16{.compute = DType::kF16, .scaler = ScalerChoice::kStatic},
      plain_fp16{.compute = DType::kF16, .scaler = ScalerChoice::kNone};
  const Case cases[] = {
      {"activation", "fp16", kHalfOverflows, fp16, "bf16 or fp32 for that layer", "margin"},
      {"gradient", "fp16", kHalfOverflows, static_fp16, "A smaller scaler.init_scale", "margin"},
      {"activation", "nvfp4:e2m1", kHalfOverflows, bf16, "with role: activation and format: low", "margin"},
      {"activation", "delayed:e4m3", kHalfOverflows, bf16, "A larger precision.delayed.margin, or e5m2", "recipe"},
      {"gradient", "delayed:e5m2", kHalfOverflows, bf16, "A larger precision.delayed.margin, or that role in bf16", ""},
      {"weight", "current:e4m3", kHalfOverflows, bf16, "format: current:e5m2", "margin"},
      {"activation", "fp16", kMostUnderflow, fp16, "bf16 for that layer", "recipe"},
      {"gradient", "fp16", kMostUnderflow, fp16, "A larger loss scale", "recipe"},
      {"gradient", "fp16", kMostUnderflow, auto_fp16, "A larger loss scale", "recipe"},
      {"gradient", "fp16", kMostUnderflow, plain_fp16, "Loss scaling (scaler.mode=dynamic)", "recipe"},
      {"gradient", "bf16", kMostUnderflow, bf16, "fp32 for that layer (precision.rules)", "or bf16"},
      {"gradient", "bf16", kMostUnderflow, bf16, "Loss scaling (scaler.mode=dynamic)", "larger loss scale"},
      {"activation", "bf16", kMostUnderflow, bf16, "fp32 for that layer (precision.rules)", "recipe"},
      {"gradient", "delayed:e5m2", kMostUnderflow, bf16, "Smaller blocks (precision.recipe=block or mxfp8)", "margin"},
      {"gradient", "delayed:e5m2", kMostUnderflow, {.margin = 2}, "A smaller precision.delayed.margin", "scaler"},
      {"activation", "block:e4m3", kMostUnderflow, bf16, "Smaller blocks (precision.recipe=mxfp8)", "=block"},
      {"gradient", "mxfp8:e4m3", kMostUnderflow, bf16, "format: mxfp8:e5m2", "maller blocks"},
      {"gradient", "nvfp4:e2m1", kMostUnderflow, bf16, "8 bits for these (precision.recipe=mxfp8)", "maller blocks"},
      {"wire", "fp16", kMostUnderflow, fp16, "bf16 or fp32 (comm.wire_dtype)", "precision"},
      {"wire", "bf16", kMostUnderflow, fp16, "in fp32 (comm.wire_dtype)", "precision"},
      {"gradient", "fp16", kMostSubnormal, fp16, "A larger loss scale", "recipe"},
      {"weight", "fp16", kMostSubnormal, fp16, "bf16 for that layer", "loss scale"},
      {"activation", "fp16", kSomeBad, fp16, "bf16 or fp32 for that layer", "optimizer"},
      {"activation", "delayed:e4m3", kSomeBad, bf16, "optimizer.lr", "bf16 or fp32"},
      {"gradient", "fp16", kSomeBad, fp16, "The dynamic loss scale skips such steps", "scaler.mode"},
      {"gradient", "fp16", kSomeBad, auto_fp16, "The dynamic loss scale skips such steps", "scaler.mode"},
      {"gradient", "fp16", kSomeBad, plain_fp16, "scaler.init_scale below 1", "dynamic"},
      {"gradient", "bf16", kSomeBad, bf16, "optimizer.lr", "scaler"},
  };
  for (const Case& one : cases) {
    const std::string text = told(analysis_of(one.setting, {tensor_of(one.role, one.format, one.losses)}));
    EXPECT_TRUE(has(text, one.expected)) << one.role << " " << one.format << ": " << text;
    EXPECT_TRUE(one.unwanted.empty() || !has(text, one.unwanted)) << one.role << " " << one.format << ": " << text;
  }
}

TEST(ModelVerdict, AdviceOnProductsFitsTheirOperands) {
  const Setting bf16, fp16{.compute = DType::kF16, .scaler = ScalerChoice::kDynamic}, fp32{.compute = DType::kF32};
  const auto verdict = [](const Setting& setting, const std::string& product, const std::string& formats) {
    return told(analysis_of(setting, {}, {product_of(product, formats, kNoisy)}));
  };
  EXPECT_TRUE(has(verdict(bf16, "fprop", "nvfp4:e2m1 x nvfp4:e2m1"), "Keep that layer in bf16 (precision.rules)"));
  EXPECT_TRUE(has(verdict(fp16, "fprop", "block:e4m3 x block:e4m3"), "Keep that layer in fp16 (precision.rules)"));
  const std::string already = verdict(bf16, "fprop", "bf16 x bf16");
  EXPECT_TRUE(has(already, "It is in bf16 already: fp32 for that layer (precision.rules)")) << already;
  EXPECT_FALSE(has(already, "Keep that layer"));
  EXPECT_TRUE(has(verdict(fp16, "dgrad", "fp16 x fp16"), "A larger loss scale (scaler), or fp32 for that layer"));
  EXPECT_FALSE(has(verdict(fp16, "fprop", "fp16 x fp16"), "loss scale"));
  EXPECT_TRUE(has(verdict(fp32, "fprop", "fp32 x fp32 by tf32"), "precision.rules with format: fp32"));
  EXPECT_TRUE(has(verdict(fp32, "fprop", "fp32 x fp32"), "It is in fp32 already"));
  const auto costly = [](const Setting& setting, const std::string& formats) {
    ErrorSums error = kNoisy;
    error.reference_squares = error.squares = error.products = 100.0;
    return told(analysis_of(setting, {}, {product_of("wgrad", formats, error, 2.0)}));
  };
  const std::string rounded = costly(bf16, "current:e5m2 x current:e4m3");
  EXPECT_TRUE(has(rounded, "Keep wgrad of that layer in bf16 (precision.rules with product: wgrad and format: low)"))
      << rounded;
  EXPECT_TRUE(has(costly(bf16, "bf16 x bf16"), "It is in bf16 already"));
}

// Different formats get different advice, a line each; equal ones share a line.
TEST(ModelVerdict, LayersOfOtherFormatsHaveLinesOfTheirOwn) {
  const ModelVerdict verdict =
      verdict_of(analysis_of({}, {tensor_of("activation", "delayed:e4m3", kHalfOverflows, "a"),
                                  tensor_of("activation", "delayed:e4m3", kHalfOverflows, "b"),
                                  tensor_of("activation", "nvfp4:e2m1", kHalfOverflows, "c")}));
  ASSERT_EQ(verdict.lines.size(), 3u);
  EXPECT_TRUE(has(verdict.lines[1], "in 2 places")) << verdict.lines[1];
  EXPECT_TRUE(has(verdict.lines[2], "'c'")) << verdict.lines[2];
}

// One in 4096 exceeds the threshold of shares, but is not significant.
TEST(ModelVerdict, AFewElementsAreNoShare) {
  const auto level = [](int64_t elements, int64_t overflowed) {
    return verdict_of(
               analysis_of({}, {tensor_of("weight", "delayed:e4m3", {.elements = elements, .overflowed = overflowed})}))
        .level;
  };
  EXPECT_EQ(level(4096 * kSteps, 1 * kSteps), VerdictLevel::kGood);
  EXPECT_EQ(level(4096 * kSteps, kLeastElements * kSteps - 1), VerdictLevel::kGood);
  EXPECT_EQ(level(4096 * kSteps, kLeastElements * kSteps), VerdictLevel::kAttention);
  EXPECT_EQ(level(4096 * kSteps * 100, kLeastElements * kSteps), VerdictLevel::kGood) << "below the share";
}

// Trainings lost nothing measurable where up to half of the gradients became 0 in 8 bits with scales.
TEST(ModelVerdict, GradientsInScaledFormatsMayUnderflowByHalf) {
  const auto level = [](const char* role, const char* format, int64_t underflowed) {
    return verdict_of(analysis_of({}, {tensor_of(role, format, {.elements = 8192, .underflowed = underflowed})})).level;
  };
  EXPECT_EQ(level("gradient", "delayed:e4m3", 4096), VerdictLevel::kGood);
  EXPECT_EQ(level("gradient", "delayed:e4m3", 4200), VerdictLevel::kAttention);
  EXPECT_EQ(level("gradient", "fp16", 100), VerdictLevel::kAttention);
  EXPECT_EQ(level("activation", "delayed:e4m3", 100), VerdictLevel::kAttention);
  EXPECT_EQ(level("gradient", "nvfp4:e2m1", 2100), VerdictLevel::kAttention);
  EXPECT_EQ(
      verdict_of(analysis_of({}, {})).lines[0],
      "No count or error is above its threshold; `analyze sensitivity` and `compare` measure what that does to the "
      "loss");
}

TEST(ModelVerdict, SaysFirstThatNoStepCouldBeUsed) {
  TensorFindings gradient = tensor_of("gradient", "bf16", {}), activation = tensor_of("activation", "bf16", {});
  gradient.non_finite_when_skipped = 3;
  ModelAnalysis analysis = analysis_of({}, {gradient});
  analysis.checkpoints[0].skipped = kSteps - 1;
  EXPECT_EQ(
      verdict_of(analysis).lines[0],
      "Some counts or errors are above their thresholds; `analyze sensitivity` and `compare` measure what that does "
      "to the loss");
  analysis.checkpoints[0].skipped = kSteps;
  EXPECT_EQ(verdict_of(analysis).lines[0],
            "No step could be used, since all were skipped: what tensors lose is unknown");
  EXPECT_EQ(verdict_of(analysis).level, VerdictLevel::kAttention);
  activation.non_finite_when_skipped = 1;
  analysis.checkpoints[0].tensors.push_back(activation);
  EXPECT_TRUE(verdict_of(analysis).lines[0].starts_with("No step could be used, since some values are not finite"));
  EXPECT_EQ(verdict_of(analysis).level, VerdictLevel::kBad);
  analysis.checkpoints.push_back(analysis_of({}, {}).checkpoints[0]);
  EXPECT_TRUE(verdict_of(analysis).lines[0].starts_with("Some values are not finite")) << "the other has counts";
}

TEST(ModelVerdict, TellsStepsWithoutATargetFromThoseThatWereNotFinite) {
  ModelAnalysis analysis = analysis_of({}, {});
  CheckpointFindings& found = analysis.checkpoints[0];
  found.skipped = found.without_target = kSteps;
  const std::string of_all = fmt::format("{0} of {0} steps were skipped because ", kSteps);
  EXPECT_TRUE(has(told(analysis), of_all + "their batches have no target: look at the loss_mask of the data"));
  EXPECT_FALSE(has(told(analysis), "not finite"));
  EXPECT_EQ(verdict_of(analysis).level, VerdictLevel::kAttention);
  found.without_target = kSteps - 1;
  EXPECT_TRUE(
      has(told(analysis), fmt::format("1 of {} steps were skipped because of values that were not finite", kSteps)));
}

ModelAnalysis with_scale(int exponent, int64_t counted, int64_t skipped) {
  ModelAnalysis analysis = analysis_of({}, {});
  CheckpointFindings& found = analysis.checkpoints[0];
  found.loss_scale.advice.recommended =
      StaticScale{.exponent = exponent, .losses = {.elements = 1000, .underflowed = 10}};
  found.loss_scale.headroom = 16.0;
  found.loss_scale.by_step.assign(static_cast<size_t>(counted), {.elements = 500, .underflowed = 1});
  found.loss_scale.by_step.front().underflowed = 10;
  found.loss_scale.skipped = skipped;
  return analysis;
}

TEST(ModelVerdict, TellsTheMeanAndTheLargestUnderflow) {
  const std::string text = told(with_scale(10, 4, 0));
  EXPECT_TRUE(
      has(text, "static loss scale of 2^10: then 1 % of the gradients of activations underflow, in one step up to 2 %"))
      << text;
  EXPECT_TRUE(has(text, "the largest one has a factor of 16 left")) << text;
  EXPECT_FALSE(has(text, "scaler.m")) << text;
  EXPECT_FALSE(has(text, "rests on")) << text;
  ModelAnalysis other = with_scale(10, 4, 0);
  other.checkpoints[0].loss_scale.options = {.percentile = 99.5, .headroom = 4.0};
  other.checkpoints[0].loss_scale.headroom = 2.0;
  EXPECT_TRUE(has(told(other), "99.5 % of them have a factor of 2 left")) << "what is left: " << told(other);
}

TEST(ModelVerdict, AScaleThatTheScalerDoesNotAllowIsSaidToBe) {
  const std::string below = told(with_scale(-3, 4, 0));
  EXPECT_TRUE(has(below, "scaler.min_scale = 1 does not allow that: lower it to 0.125")) << below;
  ModelAnalysis above = with_scale(20, 4, 0);
  above.config.scaler.scaler.max_scale = 65536.0f;
  EXPECT_TRUE(has(told(above), "scaler.max_scale = 65536 does not allow that: raise it to 1.04858e+06")) << told(above);
}

TEST(ModelVerdict, SaysWhyNoScaleIsRecommended) {
  ModelAnalysis analysis = analysis_of({}, {});
  EXPECT_FALSE(has(told(analysis), "No loss scale")) << "there were no gradients";
  analysis.checkpoints[0].loss_scale.advice.why_none = "all of them are odd";
  EXPECT_TRUE(has(told(analysis), "No loss scale for fp16 is recommended, since all of them are odd"));
}

TEST(ModelVerdict, SaysWhenAScaleRestsOnFewSteps) {
  EXPECT_TRUE(has(told(with_scale(10, 1, 3)), "this rests on 1 of 4 steps"));
  EXPECT_FALSE(has(told(with_scale(10, 3, 1)), "rests on"));
  ModelAnalysis none = analysis_of({}, {});
  none.checkpoints[0].loss_scale.skipped = kSteps;
  EXPECT_TRUE(has(told(none), "No loss scale for fp16 is recommended, since every step was skipped"));
}

// If only the rounded weight is kept, an update cannot be separated from its rounding.
TEST(ModelText, GivesNoFigureOfUpdatesThatAreNotKnown) {
  TensorFindings update = tensor_of(probe_role::kUpdate, "fp32", {.elements = 8}, "norm");
  update.stagnation = {.elements = 8, .zero = 0, .non_finite = 0, .stagnant = {0, 4, 2}};
  ModelAnalysis analysis = analysis_of({}, {update});
  const auto text = [&] { return testing::unwrapped(model_text(to_json(analysis))); };
  EXPECT_TRUE(has(text(), "Updates below half an ulp of the weight: 0 % in fp32, 50 % in bf16")) << text();
  analysis.checkpoints[0].config.optimizer.adamw.master = MasterWeights::kNoneStochastic;
  EXPECT_TRUE(has(text(), "Updates: not known, since stochastically rounded weights without masters")) << text();
  EXPECT_FALSE(has(text(), "half an ulp"));
}

TEST(ModelText, AMagnitudeOfNoStepIsNotZero) {
  TensorFindings skipped = tensor_of(probe_role::kActivation, "bf16", {}, "skipped"),
                 zero = tensor_of(probe_role::kActivation, "bf16", {.elements = 4, .zeros = 4}, "zero");
  skipped.amaxes = {NAN, NAN}, zero.amaxes = {NAN, 0.0};
  const std::string text = model_text(to_json(analysis_of({}, {skipped, zero})));
  EXPECT_TRUE(has(text, "  skipped           -       -         -       -")) << text;
  EXPECT_TRUE(has(text, "  zero       0.00e+00       0         0       -")) << text;
}

}  // namespace
}  // namespace mantissa
