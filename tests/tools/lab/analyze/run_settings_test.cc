// A run's settings that lose their meaning by others on the command line.
#include "tools/lab/analyze/model_analysis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using Settings = std::vector<std::string>;

// Settings of a run that was trained with `run`.
Config analysed(Settings run, const Settings& overrides) {
  run.insert(run.begin(), "model.layers=3");
  return run_settings(to_yaml(testing::minimal_config(run)), "run", overrides);
}

std::string refusal(const Settings& run, const Settings& overrides) {
  return testing::message_of<ConfigError>([&] { analysed(run, overrides); });
}

TEST(RunSettings, DelayedScalingGoesWithItsRecipe) {
  const Settings run = {"precision.recipe=delayed", "precision.delayed.history=16"};
  EXPECT_EQ(analysed(run, {"precision.recipe=mxfp8"}).precision.delayed, DelayedScalingOptions());
  EXPECT_EQ(analysed(run, {"precision.compute=fp16"}).precision.delayed.history, 16) << "it means something still";
  EXPECT_EQ(analysed(run, {}).precision.delayed.history, 16);
}

TEST(RunSettings, Fp32ProductsGoWithFp32) {
  const Settings run = {"precision.compute=fp32", "precision.fp32_products=tf32"};
  EXPECT_EQ(analysed(run, {"precision.compute=bf16"}).precision.fp32_products, Fp32Products::kFp32);
  EXPECT_EQ(analysed(run, {"optimizer.lr=1e-3"}).precision.fp32_products, Fp32Products::kTf32);
}

TEST(RunSettings, ElementsOfListsGoOneByOne) {
  const Config config = analysed({"precision.compute=fp32",
                                  "precision.layers=[{match: blocks.0.mlp, fp32_products: tf32}, "
                                  "{match: blocks.0.attention, dtype: mxfp8}, {match: head, fp32_products: bf16x3}, "
                                  "{match: blocks.1.mlp, op: linear, dtype: bf16}]"},
                                 {"precision.compute=bf16"});
  ASSERT_EQ(config.precision.layers.size(), 2u);
  EXPECT_EQ(config.precision.layers[0].pattern, "blocks.0.attention");
  EXPECT_EQ(config.precision.layers[1].pattern, "blocks.1.mlp");
}

TEST(RunSettings, APartOfAnElementGoesAlone) {
  const Config config = analysed({"precision.layers=[{match: blocks.0.mlp, dtype: fp32, fp32_products: tf32}]"},
                                 {"precision.ops.linear=bf16"});
  ASSERT_EQ(config.precision.layers.size(), 1u);
  EXPECT_EQ(config.precision.layers[0].setting, OpSetting(DType::kF32));
  EXPECT_EQ(config.precision.layers[0].fp32_products, std::nullopt);
}

TEST(RunSettings, WhatHangsOnWhatIsLeftOutGoesToo) {
  const Config config =
      analysed({"precision.recipe=delayed", "precision.delayed.margin=1"}, {"precision.ops.linear=current"});
  EXPECT_EQ(config.precision.recipe, std::nullopt);
  EXPECT_EQ(config.precision.delayed, DelayedScalingOptions());
}

TEST(RunSettings, EveryKindOfSettingThatCanLoseItsMeaning) {
  EXPECT_EQ(analysed({"precision.pattern=attention_high"}, {"precision.compute=fp32"}).precision.pattern.pattern,
            PrecisionPattern::kNone);
  EXPECT_EQ(analysed({"precision.recipe=block", "precision.pattern=all_low"}, {"precision.recipe=none"})
                .precision.pattern.pattern,
            PrecisionPattern::kNone);
  EXPECT_EQ(analysed({"model.layers=5", "precision.pattern=first_last_k_high", "precision.pattern_blocks=2"},
                     {"precision.pattern=attention_high"})
                .precision.pattern.blocks,
            1);
  const Settings fp32 = {"precision.compute=fp32"};
  EXPECT_EQ(analysed({"optimizer.master=kahan"}, fp32).optimizer.adamw.master, MasterWeights::kF32);
  EXPECT_EQ(analysed({"optimizer.master=kahan"}, {"precision.compute=fp16"}).optimizer.adamw.master,
            MasterWeights::kF32);
  EXPECT_EQ(analysed({"optimizer.weight_rounding=stochastic"}, fp32).optimizer.adamw.weight_rounding,
            WeightRounding::kNearest);
  EXPECT_EQ(
      analysed({"optimizer.weight_rounding=stochastic"}, {"precision.ops.linear=fp32"}).optimizer.adamw.weight_rounding,
      WeightRounding::kNearest);
  EXPECT_EQ(
      analysed({"optimizer.weight_rounding=stochastic"}, {"optimizer.master=kahan"}).optimizer.adamw.weight_rounding,
      WeightRounding::kNearest);
  EXPECT_EQ(analysed({"precision.recipe=delayed", "comm.gather=fp8"}, {"precision.weights=fp32"}).comm.gather,
            WeightGather::kWorking);
  EXPECT_EQ(analysed({"optimizer.schedule=wsd", "optimizer.decay_steps=10"}, {"optimizer.schedule=cosine"})
                .optimizer.schedule.decay_steps,
            0);
  EXPECT_EQ(analysed({"data.format=tokens", "data.layout=u16"}, {"data.format=bytes"}).data.layout, TokenLayout::kAuto);
}

TEST(RunSettings, WhatIsGivenBesideThemStaysRefused) {
  const Settings run = {"precision.recipe=delayed", "precision.delayed.history=16"};
  EXPECT_THAT(refusal(run, {"precision.recipe=mxfp8", "precision.delayed.margin=1"}),
              HasSubstr("precision.delayed has no meaning"));
  EXPECT_THAT(refusal({"precision.compute=fp32"}, {"precision.compute=bf16", "precision.fp32_products=tf32"}),
              HasSubstr("precision.fp32_products = tf32 has no effect"));
  EXPECT_THAT(refusal({}, {"precision.layers=[{match: head, fp32_products: tf32}]"}),
              HasSubstr("fp32_products without effect"));
  EXPECT_THAT(refusal(run, {"model.heads=5"}), HasSubstr("must divide model.width"));
}

TEST(RunSettings, NothingIsLeftOutWithoutOverrides) {
  EXPECT_THAT(refusal({"precision.recipe=block", "precision.delayed.margin=1"}, {}),
              HasSubstr("precision.delayed has no meaning"));
}

}  // namespace
}  // namespace mantissa
