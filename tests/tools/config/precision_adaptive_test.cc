// precision.adaptive: the levels of its ladder, and rejected settings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tools/config/config_binding.h"
#include "tools/config/precision_phases.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;

constexpr const char* kYaml = R"(
model: {layers: 2, width: 32, heads: 2, context: 16, vocab: 256}
data: {train: [text.txt]}
train: {steps: 100, global_batch: 4, micro_batch: 4}
precision: {compute: bf16, weights: fp32}
)";
constexpr const char* kLevels =
    "precision.adaptive.levels=[{compute: fp32}, {compute: bf16}, {recipe: delayed, delayed: {margin: 2}}]";
constexpr const char* kStart = "precision.adaptive.start=2";
constexpr const char* kSignal = "precision.adaptive.loss_rise=0.5";

Config configured(const std::vector<std::string>& settings) { return parse_config(kYaml, "run.yaml", settings); }

std::string refusal(const std::vector<std::string>& settings) {
  try {
    configured(settings);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(PrecisionAdaptive, LevelsAreThePhasesOfTheRun) {
  const Config config = configured({kLevels, kStart, kSignal});
  ASSERT_EQ(phase_count(config), 3);
  EXPECT_EQ(phase_at(config, 0), 2);
  EXPECT_EQ(phase_at(config, 99), 2);
  EXPECT_EQ(phase_end(config, 2), 100);
  EXPECT_EQ(phase_path(config, 1), "precision.adaptive.levels[1]");
  EXPECT_EQ(phase_title(config, 1), ", with precision.adaptive.levels[1]");
  const Config top = in_phase(config, 0), bottom = in_phase(config, 2);
  EXPECT_EQ(top.precision.compute, DType::kF32);
  EXPECT_EQ(bottom.precision.recipe, parse_recipe("delayed"));
  EXPECT_EQ(bottom.precision.compute, DType::kBF16);
  EXPECT_EQ(bottom.precision.weights, WorkingWeights::kFp32) << "a level takes omitted settings from precision";
  EXPECT_EQ(bottom.precision.delayed.margin, 2);
  EXPECT_FALSE(adapts(top));
  EXPECT_EQ(top.precision_adaptive.options, config.precision_adaptive.options);
}

TEST(PrecisionAdaptive, LevelsHaveShortNames) {
  const auto names = [](const std::string& levels) {
    return phase_names(configured({"precision.adaptive.levels=" + levels, kSignal}));
  };
  EXPECT_EQ(phase_names(configured({kLevels, kStart, kSignal})), (std::vector<std::string>{"fp32", "bf16", "delayed"}));
  EXPECT_EQ(names("[{compute: bf16}, {recipe: current, pattern: attention_high}]"),
            (std::vector<std::string>{"bf16", "current:attention_high"}));
  EXPECT_EQ(names("[{compute: fp32, fp32_products: tf32}, {compute: bf16}]"),
            (std::vector<std::string>{"tf32", "bf16"}));
  EXPECT_EQ(names("[{compute: bf16}, {recipe: delayed, delayed: {margin: 2}}, {recipe: delayed}]"),
            (std::vector<std::string>{"bf16", "precision.adaptive.levels[1]", "precision.adaptive.levels[2]"}))
      << "a name would not tell them apart";
}

TEST(PrecisionAdaptive, LevelsHaveTheLossScalerThatTheyNeed) {
  const Config config = configured({"precision.adaptive.levels=[{compute: bf16}, {compute: fp16}]", kSignal});
  EXPECT_EQ(in_phase(config, 0).scaler.scaler.mode, ScalerMode::kNone);
  EXPECT_EQ(in_phase(config, 1).scaler.scaler.mode, ScalerMode::kDynamic);
}

TEST(PrecisionAdaptive, IsWrittenAndReadBack) {
  const Config config = configured({kLevels, kStart, kSignal, "precision.adaptive.warmup=7"});
  EXPECT_EQ(flatten(parse_config(to_yaml(config), "again.yaml")), flatten(config));
  EXPECT_FALSE(training_differences(config, configured({kLevels, kStart, "precision.adaptive.loss_rise=0.6"})).empty());
}

TEST(PrecisionAdaptive, WithAScheduleIsRefused) {
  EXPECT_THAT(refusal({kLevels, kSignal, "precision.schedule=[{after_step: 9, compute: fp32}]"}),
              HasSubstr("precision.adaptive and precision.schedule: both set the precision of a step"));
}

TEST(PrecisionAdaptive, ImpossibleLaddersAreRefused) {
  EXPECT_THAT(refusal({kLevels}), HasSubstr("signals = none: expected at least one"));
  EXPECT_THAT(refusal({"precision.adaptive.levels=[{compute: fp32}]", kSignal}),
              HasSubstr("levels = 1: expected at least two"));
  EXPECT_THAT(refusal({kLevels, kSignal, "precision.adaptive.start=3"}), HasSubstr("start = 3"));
  EXPECT_THAT(refusal({kLevels, "precision.adaptive.norm_factor=0.5"}), HasSubstr("norm_factor = 0.5"));
}

TEST(PrecisionAdaptive, SignalsNeedWhatTheyAreMadeOf) {
  EXPECT_THAT(refusal({kLevels, "precision.adaptive.stalled_evaluations=2", "train.eval_interval=0"}),
              HasSubstr("with train.eval_interval = 0 there are none"));
  EXPECT_THAT(refusal({kLevels, "precision.adaptive.underflow_share=0.5"}), HasSubstr("give probe.enabled=true"));
  EXPECT_EQ(refusal({kLevels, "precision.adaptive.underflow_share=0.5", "probe.enabled=true"}), "accepted");
}

// Steps without a check of every signal do not count as stable.
TEST(PrecisionAdaptive, GoingDownWaitsForEverySignalToBeLookedAt) {
  const std::vector<std::string> watching = {kLevels, "precision.adaptive.stalled_evaluations=2",
                                             "train.eval_interval=70"};
  const auto with_stable = [&](int steps) {
    std::vector<std::string> settings = watching;
    settings.push_back("precision.adaptive.stable_steps=" + std::to_string(steps));
    return refusal(settings);
  };
  EXPECT_THAT(with_stable(20), HasSubstr("stable_steps = 20 is below train.eval_interval = 70"));
  EXPECT_EQ(with_stable(70), "accepted");
  EXPECT_EQ(with_stable(0), "accepted") << "it never goes down";
}

// These settings may change unless decisions depend on them.
TEST(PrecisionAdaptive, WhatDecisionsRestOnShapesTheTraining) {
  const std::vector<std::string> watching = {kLevels, "precision.adaptive.stalled_evaluations=2",
                                             "precision.adaptive.underflow_share=0.5", "probe.enabled=true"};
  for (const char* setting : {"train.eval_interval=7", "train.eval_batches=3", "probe.interval=9"}) {
    std::vector<std::string> changed = watching;
    changed.push_back(setting);
    EXPECT_EQ(training_differences(configured(watching), configured(changed)).size(), 1u) << setting;
    EXPECT_TRUE(training_differences(configured({}), configured({setting})).empty()) << setting;
  }
}

TEST(PrecisionAdaptive, LevelsAreCheckedAndNamed) {
  EXPECT_THAT(refusal({"precision.adaptive.levels=[{compute: fp32}, {rules: [{format: low}]}]", kSignal}),
              ::testing::AllOf(HasSubstr("precision.adaptive.levels[1]"), HasSubstr("this format needs an op")));
  EXPECT_THAT(refusal({"precision.adaptive.levels=[{compute: fp32}, {recipe: current}, {compute: bf16}]", kSignal}),
              ::testing::AllOf(HasSubstr("precision.adaptive.levels[2]"), HasSubstr("16 bits"), HasSubstr("has 8"),
                               HasSubstr("the most precision first")));
  EXPECT_THAT(refusal({"precision.adaptive.levels=[{compute: fp31}]", kSignal}),
              HasSubstr("precision.adaptive.levels[0].compute: expected one of"));
}

}  // namespace
}  // namespace mantissa
