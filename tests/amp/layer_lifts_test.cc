#include "amp/layer_lifts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "amp/autocast_policy.h"

namespace mantissa {
namespace {

Precision precision_of(AutocastConfig config, const std::string& layer) {
  return AutocastPolicy(std::move(config)).at(layer);
}

DType linear_dtype(const Precision& precision) {
  return compute_dtype(precision, {}, Op::kLinear, DType::kF32, DType::kF32);
}

DType attention_dtype(const Precision& precision) {
  return compute_dtype(precision, {}, Op::kAttention, DType::kF32, DType::kF32);
}

TEST(LayerLifts, GoUpALevelAtATime) {
  AutocastConfig config{.dtype = DType::kF16, .recipe = parse_recipe("delayed")};
  const std::string layer = "blocks.0.mlp.up";
  Precision precision = precision_of(config, layer);
  EXPECT_EQ(lift_room(precision, Op::kLinear), 3);
  EXPECT_EQ(describe_lift(precision, Op::kLinear), "delayed:e4m3 in fp16");
  const std::pair<DType, const char*> expected[] = {
      {DType::kF16, "fp16"}, {DType::kBF16, "bf16"}, {DType::kF32, "fp32"}, {DType::kF32, "fp32"}};
  for (int levels = 1; levels <= 4; ++levels) {
    config.lifts = {{layer, levels}};
    const Precision lifted = precision_of(config, layer);
    const auto& [dtype, text] = expected[levels - 1];
    EXPECT_FALSE(lifted.linear.any());
    EXPECT_EQ(linear_dtype(lifted), dtype) << levels;
    EXPECT_EQ(describe_lift(lifted, Op::kLinear), text);
    EXPECT_EQ(lift_room(lifted, Op::kLinear), std::max(0, 3 - levels));
    // Others stay, also those below it in the path.
    EXPECT_TRUE(precision_of(config, "blocks.0.mlp.down").linear.any());
    EXPECT_TRUE(precision_of(config, "blocks.0.mlp.up.more").linear.any());
  }
}

// Whatever the settings say, and at whatever level they say it.
TEST(LayerLifts, AreAboveEveryOverride) {
  AutocastConfig config{.dtype = DType::kBF16};
  config.ops[static_cast<size_t>(Op::kLinear)] = OpSetting(DType::kF16);
  config.layers = {{.pattern = "a", .op = Op::kLinear, .setting = OpSetting(*parse_recipe("current"))},
                   {.pattern = "a", .setting = OpSetting(*parse_recipe("mxfp8")), .product = Product::kForward}};
  config.lifts = {{"a", 1}};
  EXPECT_FALSE(precision_of(config, "a").linear.any());
  config.lifts = {{"a", 5}};
  EXPECT_EQ(linear_dtype(precision_of(config, "a")), DType::kF32);
  EXPECT_EQ(linear_dtype(precision_of(config, "b")), DType::kF16);
}

// A lifted layer is final: a scope of another dtype does not lower it.
TEST(LayerLifts, NoScopeLowersThem) {
  const AutocastConfig config{.dtype = DType::kBF16, .lifts = {{"a", 1}}};
  EXPECT_EQ(compute_dtype(precision_of(config, "a"), {.enabled = true, .dtype = DType::kF16}, Op::kLinear, DType::kF32,
                          DType::kF32),
            DType::kF32);
}

TEST(LayerLifts, AttentionIsLiftedWithItsLayer) {
  const AutocastConfig config{.dtype = DType::kF16, .lifts = {{"blocks.0.attention", 1}}};
  const Precision lifted = precision_of(config, "blocks.0.attention");
  EXPECT_EQ(attention_dtype(lifted), DType::kBF16);
}

// A recipe is of linear layers: the first level of an attention is another dtype.
TEST(LayerLifts, AttentionHasNoLevelOfRoundedOperands) {
  const std::string layer = "blocks.0.attention";
  AutocastConfig config{.dtype = DType::kF16, .recipe = parse_recipe("delayed")};
  EXPECT_EQ(lift_room(precision_of(config, layer), Op::kAttention), 2);
  EXPECT_EQ(describe_lift(precision_of(config, layer), Op::kAttention), "fp16");
  const DType expected[] = {DType::kBF16, DType::kF32, DType::kF32};
  for (int levels = 1; levels <= 3; ++levels) {
    config.lifts = {{layer, levels}};
    const Precision lifted = precision_of(config, layer);
    EXPECT_EQ(attention_dtype(lifted), expected[levels - 1]) << levels;
    EXPECT_EQ(lift_room(lifted, Op::kAttention), std::max(0, 2 - levels));
  }
}

TEST(LayerLifts, WhatIsFp32HasNoRoom) {
  for (const Op op : {Op::kLinear, Op::kAttention}) {
    EXPECT_EQ(lift_room(precision_of({.enabled = false}, "a"), op), 0);
    EXPECT_EQ(lift_room(precision_of({.dtype = DType::kF32}, "a"), op), 0);
    AutocastConfig config{.dtype = DType::kBF16};
    config.ops[static_cast<size_t>(op)] = OpSetting(DType::kF32);
    EXPECT_EQ(lift_room(precision_of(config, "a"), op), 0) << "whatever others compute in";
  }
  EXPECT_EQ(lift_room(precision_of({.dtype = DType::kF32, .recipe = parse_recipe("block")}, "a"), Op::kLinear), 1);
}

}  // namespace
}  // namespace mantissa
