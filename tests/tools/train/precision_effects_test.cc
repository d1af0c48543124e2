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

TEST(PrecisionEffects, Fp32ProductsThatChangeSomethingAreAccepted) {
  for (const char* products : {"tf32", "bf16x3", "bf16x6"}) {
    const std::string model = std::string("precision.fp32_products=") + products;
    EXPECT_EQ(refusal({"precision.compute=fp32", model}), kNothing);
    EXPECT_EQ(refusal({"precision.layers=[{match: head, dtype: fp32}]", model}), kNothing);
    EXPECT_EQ(refusal({std::string("precision.layers=[{match: blocks.*.mlp, dtype: fp32, fp32_products: ") + products +
                       "}]"}),
              kNothing);
  }
  EXPECT_EQ(refusal({"precision.compute=fp32", "precision.fp32_products=tf32",
                     "precision.layers=[{match: \"**.attention\", fp32_products: fp32}]"}),
            kNothing);
  EXPECT_EQ(refusal({"precision.compute=fp32", "precision.fp32_products=tf32",
                     "precision.layers=[{match: \"**\", role: weight, dtype: mxfp8}]"}),
            kNothing)
      << "weight gradients multiply fp32 numbers";
}

TEST(PrecisionEffects, Fp32ProductsWithoutFp32NumbersAreRefused) {
  EXPECT_THAT(refusal({"precision.fp32_products=tf32"}),
              HasSubstr("precision.fp32_products = tf32 has no effect: no linear layer multiplies fp32 numbers; remove "
                        "it, or set precision.compute=fp32"));
  EXPECT_THAT(refusal({"precision.compute=fp32", "precision.recipe=current", "precision.pattern=all_low",
                       "precision.fp32_products=bf16x6"}),
              HasSubstr("no linear layer multiplies fp32 numbers"));
  EXPECT_THAT(refusal({"precision.compute=fp32", "precision.fp32_products=bf16x6",
                       "precision.layers=[{match: \"**\", fp32_products: tf32}]"}),
              HasSubstr("precision.layers decides about every linear layer that multiplies fp32 numbers"));
  for (const char* layer : {"{match: token_embedding, fp32_products: tf32}", "{match: blocks.0, fp32_products: tf32}",
                            "{match: head, dtype: bf16, fp32_products: tf32}"}) {
    EXPECT_THAT(refusal({std::string("precision.layers=[{match: head, dtype: fp32}, ") + layer + "]"}),
                HasSubstr("precision.layers[1], which matches"))
        << layer;
  }
  EXPECT_THAT(refusal({"precision.compute=fp32", "precision.layers=[{match: blocks, fp32_products: fp32}]"}),
              HasSubstr("has fp32_products without effect"));
}

}  // namespace
}  // namespace mantissa
