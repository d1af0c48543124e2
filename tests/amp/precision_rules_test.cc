// Precision rules as they are written: patterns over layers, recipes, names, and what is refused.
#include "amp/precision_rules.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

using testing::error_of;

constexpr Recipe kMx{Scaling::kMicro};
constexpr auto kFprop = Product::kForward, kDgrad = Product::kInputGradient;

bool matches(const char* pattern, const char* path) { return LayerPattern(pattern).matches(path); }

TEST(LayerPatternTest, LiteralNamesCoverTheLayersBelow) {
  EXPECT_TRUE(matches("blocks.0", "blocks.0"));
  EXPECT_TRUE(matches("blocks.0", "blocks.0.mlp.up"));
  EXPECT_FALSE(matches("blocks.0.mlp", "blocks.0"));
  EXPECT_FALSE(matches("blocks.1", "blocks.10"));  // whole components only
  EXPECT_FALSE(matches("mlp", "blocks.0.mlp"));    // from the start
}

TEST(LayerPatternTest, WildcardsStayWithinAComponent) {
  EXPECT_TRUE(matches("blocks.*.mlp", "blocks.11.mlp.down"));
  EXPECT_FALSE(matches("blocks.*.mlp", "blocks.11.attention"));
  EXPECT_FALSE(matches("blocks.*.up", "blocks.0.mlp.up"));
  EXPECT_TRUE(matches("blocks.1*", "blocks.10"));
  EXPECT_TRUE(matches("blocks.1*", "blocks.1"));
  EXPECT_FALSE(matches("blocks.1?", "blocks.1"));
  EXPECT_TRUE(matches("blocks.1?", "blocks.12"));
  EXPECT_TRUE(matches("*norm*", "final_norm"));
  EXPECT_TRUE(matches("b*k*s", "blocks"));
  EXPECT_FALSE(matches("b*k*x", "blocks"));
  EXPECT_TRUE(matches("blocks.[0-3]", "blocks.2.mlp"));
  EXPECT_FALSE(matches("blocks.[0-3]", "blocks.4.mlp"));
}

TEST(LayerPatternTest, DoubleStarSpansComponents) {
  EXPECT_TRUE(matches("**.mlp", "blocks.0.mlp"));
  EXPECT_TRUE(matches("**.mlp", "mlp"));
  EXPECT_TRUE(matches("blocks.**.up", "blocks.0.mlp.up"));
  EXPECT_TRUE(matches("blocks.**.up", "blocks.up"));
  EXPECT_FALSE(matches("blocks.**.up", "head"));
  EXPECT_TRUE(matches("**", "blocks.0"));
}

TEST(LayerPatternTest, TheRootHasNoComponent) {
  EXPECT_FALSE(matches("*", ""));
  EXPECT_TRUE(matches("**", ""));
  EXPECT_TRUE(matches("*", "head"));
}

TEST(LayerPatternTest, EmptyComponentsAreRefused) {
  for (const char* text : {"", ".", "blocks.", ".blocks", "blocks..mlp"}) {
    EXPECT_THROW(LayerPattern{text}, ConfigError) << "'" << text << "'";
  }
}

TEST(RecipeTest, FormatsAreThoseOfTheRecipe) {
  for (const Role role : kAllRoles) {
    const Format per_tensor = role == Role::kGradient ? Format::kE5M2 : Format::kE4M3;
    EXPECT_EQ(format_for({Scaling::kDelayed}, role), (TensorFormat{per_tensor, Scaling::kDelayed}));
    EXPECT_EQ(format_for({Scaling::kCurrent}, role), (TensorFormat{per_tensor, Scaling::kCurrent}));
    EXPECT_EQ(format_for({Scaling::kBlock}, role), (TensorFormat{Format::kE4M3, Scaling::kBlock}));
    EXPECT_EQ(format_for({Scaling::kMicro}, role), (TensorFormat{Format::kE4M3, Scaling::kMicro}));
    EXPECT_EQ(format_for({Scaling::kTwoLevel}, role), (TensorFormat{Format::kE2M1, Scaling::kTwoLevel}));
    EXPECT_EQ(format_for({Scaling::kMicro, Format::kE5M2}, role), (TensorFormat{Format::kE5M2, Scaling::kMicro}));
  }
}

TEST(RecipeTest, NamesAreReadBack) {
  for (const Scaling scaling : kAllScalings) {
    EXPECT_EQ(parse_recipe(name(Recipe{scaling})), Recipe{scaling});
    for (const Format format : kAllFormats) {
      const Recipe recipe{scaling, format};
      const std::optional<Recipe> read = parse_recipe(name(recipe));
      EXPECT_EQ(read.has_value(), refusal({format, scaling}).empty()) << name(recipe);
      if (read) {
        EXPECT_EQ(*read, recipe) << name(recipe);
      }
    }
  }
  EXPECT_EQ(name(Recipe{Scaling::kDelayed, Format::kE5M2}), "delayed:e5m2");
}

TEST(RecipeTest, OtherTextsAreNone) {
  for (const char* text : {"", "fp8", "Delayed", "delayed:", "delayed:e3m4", "delayed:e2m1", ":e4m3", "nvfp4:e4m3",
                           "current:bf16", "block:e4m3:"}) {
    EXPECT_FALSE(parse_recipe(text).has_value()) << text;
  }
}

// ---- Invalid rules.

std::string rejection(const PrecisionRule& rule) {
  return error_of([&] { validate(rule); });
}

TEST(PrecisionRules, WhatMakesNoSenseIsRefused) {
  EXPECT_EQ(rejection({.match = "a"}).substr(0, 62), "[precision] rule {match: a}: expected a format, one of fp32, b");
  EXPECT_EQ(rejection({.match = "a", .op = Op::kAttention, .format = kMx}),
            "[precision] rule {match: a, op: attention, format: mxfp8}: only linear layers have this format");
  EXPECT_EQ(rejection({.match = "a", .op = Op::kGelu, .role = Role::kWeight, .format = kMx}),
            "[precision] rule {match: a, op: gelu, role: weight, format: mxfp8}: only linear layers have products and "
            "roles");
  EXPECT_EQ(rejection({.match = "a", .product = kFprop, .role = Role::kGradient, .format = kMx}),
            "[precision] rule {match: a, product: fprop, role: gradient, format: mxfp8}: this product has no such "
            "operand: fprop multiplies activations and weights, dgrad gradients and weights, wgrad gradients and "
            "activations");
  EXPECT_EQ(rejection({.match = "a", .role = Role::kWeight, .format = DType::kBF16}),
            "[precision] rule {match: a, role: weight, format: bf16}: an operand has a recipe, or low: it is not "
            "rounded further");
  EXPECT_EQ(rejection({.match = "a", .op = Op::kGelu, .format = Fp32Products::kTf32}),
            "[precision] rule {match: a, op: gelu, format: tf32}: only linear layers have this format");
  EXPECT_EQ(rejection({.match = "**", .product = kFprop, .format = Fp32Products::kTf32}),
            "[precision] rule {product: fprop, format: tf32}: an operand has a recipe, or low: it is not rounded "
            "further");
  EXPECT_EQ(rejection({.op = Op::kAttention, .format = kMx}),
            "[precision] rule {op: attention, format: mxfp8}: only linear layers have this format");
  for (const CastRule rule : {CastRule::kLow, CastRule::kWidest, CastRule::kAsGiven, CastRule::kFp32}) {
    EXPECT_NE(rejection({.match = "head", .format = rule}).find("this format needs an op"), std::string::npos);
  }
  EXPECT_NE(rejection({.format = DType::kI32}), "");
  EXPECT_NE(rejection({.match = "head", .format = DType::kI32}), "");
  EXPECT_NE(rejection({.op = Op::kLinear, .format = DType::kU8}), "");
  EXPECT_NE(rejection({.match = "blocks..mlp", .format = DType::kF16}), "");
}

// Norms and the loss always compute in fp32. Rules that contradict this are rejected, all others accepted.
TEST(PrecisionRules, OpsThatAlwaysComputeInFp32HaveNoOtherFormat) {
  for (int index = 0; index < kOpCount; ++index) {
    const Op op = static_cast<Op>(index);
    const bool fixed = op == Op::kLayerNorm || op == Op::kRmsNorm || op == Op::kCrossEntropy;
    for (const RuleFormat format :
         std::initializer_list<RuleFormat>{CastRule::kLow, CastRule::kWidest, CastRule::kAsGiven, CastRule::kFp32,
                                           DType::kF32, DType::kBF16, DType::kF16}) {
      for (const char* match : {"**", "blocks.*"}) {
        const bool refused = fixed && name(format) != "fp32";
        EXPECT_EQ(rejection({.match = match, .op = op, .format = format}).empty(), !refused) << name(op);
      }
    }
  }
  EXPECT_EQ(rejection({.op = Op::kCrossEntropy, .format = DType::kBF16}),
            "[precision] rule {op: cross_entropy, format: bf16}: this op always computes in fp32: the loss reads the "
            "logits as they are; give the format to the linear op of the head");
  EXPECT_EQ(
      rejection({.match = "blocks.*", .op = Op::kRmsNorm, .format = CastRule::kAsGiven}),
      "[precision] rule {match: \"blocks.*\", op: rms_norm, format: as_given}: this op always computes in fp32: the "
      "op that takes a norm's result rounds it; give the format to that op");
}

TEST(PrecisionRules, NamesAreReadBack) {
  const char* const names[] = {"fp32",   "bf16",   "fp16",    "low",     "widest", "as_given",     "tf32",
                               "bf16x3", "bf16x6", "delayed", "current", "block",  "current:e5m2", "nvfp4"};
  for (const char* text : names) {
    ASSERT_TRUE(parse_rule_format(text)) << text;
    EXPECT_EQ(name(*parse_rule_format(text)), text);
  }
  EXPECT_EQ(parse_rule_format("fp32"), RuleFormat(DType::kF32));
  EXPECT_EQ(parse_rule_format("tf32"), RuleFormat(Fp32Products::kTf32));
  EXPECT_FALSE(parse_rule_format("half"));
  EXPECT_EQ(parse_op("layer_norm"), Op::kLayerNorm);
  EXPECT_FALSE(parse_op("layernorm"));
  EXPECT_EQ(describe({.match = "**.mlp", .op = Op::kLinear, .product = kDgrad, .role = Role::kWeight, .format = kMx}),
            "{match: \"**.mlp\", op: linear, product: dgrad, role: weight, format: mxfp8}");
}

}  // namespace
}  // namespace mantissa
