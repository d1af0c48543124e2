#include "amp/precision_pattern.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

constexpr int64_t kBlocks = 4;

// As a configuration puts it together: a model of 4 blocks.
AutocastPolicy policy_of(PatternOptions options, std::optional<Recipe> recipe, DType low = DType::kBF16) {
  return AutocastPolicy({.dtype = low,
                         .recipe = recipe,
                         .layers = overrides_of(options, {.blocks = kBlocks, .low = low, .recipe = recipe})});
}

DType dtype_at(const AutocastPolicy& policy, std::string_view layer, Op op = Op::kLinear) {
  return compute_dtype(policy.at(layer), {}, op, DType::kF32, DType::kF32);
}

bool rounds(const AutocastPolicy& policy, std::string_view layer) { return policy.at(layer).linear.any(); }

constexpr Recipe kRecipe{Scaling::kCurrent};

TEST(PrecisionPatternTest, AllLowRoundsTheHeadAsWell) {
  const AutocastPolicy policy = policy_of({PrecisionPattern::kAllLow}, kRecipe);
  EXPECT_TRUE(rounds(policy, "head"));
  EXPECT_TRUE(rounds(policy, "blocks.0.mlp.up"));
}

TEST(PrecisionPatternTest, Fp32EndsLowCore) {
  const AutocastPolicy policy = policy_of({PrecisionPattern::kFp32EndsLowCore}, kRecipe);
  EXPECT_EQ(dtype_at(policy, "head"), DType::kF32);
  EXPECT_EQ(dtype_at(policy, "blocks.0.mlp.up"), DType::kBF16);
  EXPECT_TRUE(rounds(policy, "blocks.0.mlp.up"));
  EXPECT_FALSE(rounds(policy, "head"));
  EXPECT_EQ(dtype_at(policy_of({PrecisionPattern::kFp32EndsLowCore}, {}), "head"), DType::kF32);
}

TEST(PrecisionPatternTest, AttentionHighIsUnroundedOrFp32) {
  const AutocastPolicy rounded = policy_of({PrecisionPattern::kAttentionHigh}, kRecipe);
  EXPECT_FALSE(rounds(rounded, "blocks.2.attention.qkv"));
  EXPECT_EQ(dtype_at(rounded, "blocks.2.attention.qkv"), DType::kBF16);
  EXPECT_TRUE(rounds(rounded, "blocks.2.mlp.down"));
  const AutocastPolicy plain = policy_of({PrecisionPattern::kAttentionHigh}, {});
  EXPECT_EQ(dtype_at(plain, "blocks.2.attention.out"), DType::kF32);
  EXPECT_EQ(dtype_at(plain, "blocks.2.attention", Op::kAttention), DType::kF32);
  EXPECT_EQ(dtype_at(plain, "blocks.2.mlp.down"), DType::kBF16);
}

TEST(PrecisionPatternTest, FirstAndLastBlocksHigh) {
  const AutocastPolicy policy = policy_of({PrecisionPattern::kFirstLastKHigh, 1}, kRecipe);
  for (const char* layer : {"blocks.0.mlp.up", "blocks.0.attention.qkv", "blocks.3.mlp.down"}) {
    EXPECT_FALSE(rounds(policy, layer)) << layer;
  }
  for (const char* layer : {"blocks.1.mlp.up", "blocks.2.attention.out"}) EXPECT_TRUE(rounds(policy, layer)) << layer;
}

// What a configuration says about a layer in a pattern's block has more literal characters.
TEST(PrecisionPatternTest, LayersOfTheConfigurationWin) {
  AutocastConfig config{.recipe = kRecipe};
  config.layers = overrides_of({PrecisionPattern::kFirstLastKHigh, 1}, {.blocks = kBlocks, .recipe = kRecipe});
  config.layers.push_back({.pattern = "blocks.0.mlp.up", .setting = Recipe{Scaling::kTwoLevel}});
  EXPECT_TRUE(AutocastPolicy(config).at("blocks.0.mlp.up").linear.uses(Scaling::kTwoLevel));
  EXPECT_FALSE(rounds(AutocastPolicy(config), "blocks.0.mlp.down"));
}

// The level of the op is above that of the layer: a pattern holds there too.
TEST(PrecisionPatternTest, HoldsWhereTheRecipeIsTheOps) {
  AutocastConfig config;
  config.layers = overrides_of({PrecisionPattern::kFirstLastKHigh, 1},
                               {.blocks = kBlocks, .recipe = kRecipe, .recipe_is_the_ops = true});
  config.ops[static_cast<size_t>(Op::kLinear)] = OpSetting(kRecipe);
  EXPECT_FALSE(rounds(AutocastPolicy(config), "blocks.0.mlp.up"));
}

TEST(PrecisionPatternTest, PatternsWithoutAnEffectAreRefused) {
  using testing::error_of;
  EXPECT_EQ(error_of([] {
              policy_of({PrecisionPattern::kFirstLastKHigh, 2}, kRecipe);
            }),
            "precision.pattern_blocks = 2 at each end leave none of the model's 4 blocks low: give at most 1, or a "
            "model of more layers");
  for (const int64_t blocks : {1, 2}) {
    EXPECT_EQ(error_of([&] {
                overrides_of({PrecisionPattern::kFirstLastKHigh, 1}, {.blocks = blocks, .recipe = kRecipe});
              }),
              fmt::format("precision.pattern: first_last_k_high keeps at least one block at each end high, and none of "
                          "the model's {} would be low: give model.layers of at least 3, or another precision.pattern",
                          blocks));
  }
  EXPECT_NO_THROW(overrides_of({PrecisionPattern::kFirstLastKHigh, 1}, {.blocks = 3, .recipe = kRecipe}));
  EXPECT_EQ(error_of([] { policy_of({PrecisionPattern::kAllLow}, {}); }),
            "precision.pattern: all_low has no effect without precision.recipe, which leaves out the head: everything "
            "is as low as precision.compute and precision.ops say already; give precision.recipe, or remove the "
            "pattern");
  EXPECT_EQ(error_of([] { policy_of({PrecisionPattern::kAttentionHigh}, {}, DType::kF32); }),
            "precision.pattern has no meaning where everything computes in fp32: give precision.compute=bf16 or fp16, "
            "or a precision.recipe");
}

}  // namespace
}  // namespace mantissa
