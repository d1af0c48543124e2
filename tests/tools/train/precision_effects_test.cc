#include "tools/train/precision_effects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;

std::string refusal(std::vector<std::string> settings) {
  settings.insert(settings.begin(), "model.layers=3");
  return testing::message_of<ConfigError>([&] { require_effects(testing::minimal_config(settings)); });
}

const char* const kNothing = "(nothing was thrown)";

TEST(PrecisionEffects, SettingsThatChangeSomethingAreAccepted) {
  EXPECT_EQ(refusal({}), kNothing);
  EXPECT_EQ(refusal({"precision.recipe=mxfp8", "precision.pattern=attention_high"}), kNothing);
  EXPECT_EQ(refusal({"precision.recipe=delayed", "precision.delayed.margin=1"}), kNothing);
  EXPECT_EQ(refusal({"precision.layers=[{match: blocks.0.mlp, dtype: delayed}]", "precision.delayed.history=3"}),
            kNothing);
  EXPECT_EQ(refusal({"precision.recipe=mxfp8",
                     "precision.layers=[{match: head, op: linear, dtype: mxfp8}, "
                     "{match: \"**\", role: gradient, dtype: low}]"}),
            kNothing);
}

TEST(PrecisionEffects, RecipesThatNoLayerFollowsAreRefused) {
  for (const char* linear : {"fp32", "low", "current"}) {
    EXPECT_THAT(refusal({"precision.recipe=mxfp8", std::string("precision.ops.linear=") + linear}),
                HasSubstr("precision.recipe = mxfp8 has no effect: precision.ops.linear or precision.layers decide"));
  }
}

TEST(PrecisionEffects, OverridesThatChangeNoOperandAreRefused) {
  EXPECT_THAT(refusal({"precision.layers=[{match: token_embedding, dtype: nvfp4}]"}),
              HasSubstr("precision.layers[0], which matches 'token_embedding', changes no operand"));
  EXPECT_THAT(refusal({"precision.ops.linear=bf16", "precision.layers=[{match: blocks.0.mlp.up, dtype: mxfp8}]"}),
              HasSubstr("precision.layers[0], which matches 'blocks.0.mlp.up', changes no operand"));
  EXPECT_THAT(refusal({"precision.layers=[{match: blocks.0, product: fprop, dtype: low}]"}),
              HasSubstr("changes no operand"));
}

TEST(PrecisionEffects, DelayedScalingThatNothingUsesIsRefused) {
  EXPECT_THAT(refusal({"precision.recipe=block", "precision.delayed.margin=1"}),
              HasSubstr("precision.delayed has no meaning where nothing is scaled so"));
}

}  // namespace
}  // namespace mantissa
