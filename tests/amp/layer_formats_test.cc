// Precision rules and the short forms on layers: the formats of linear operands, and how they multiply.
#include <gtest/gtest.h>

#include "amp/autocast_policy.h"
#include "core/base/error.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace layer_formats_test {

using testing::error_of;
using Rules = std::vector<PrecisionRule>;

constexpr Recipe kMx{Scaling::kMicro}, kCurrent{Scaling::kCurrent}, kBlock{Scaling::kBlock};
constexpr auto kFprop = Product::kForward, kDgrad = Product::kInputGradient, kWgrad = Product::kWeightGradient;

LinearFormats all_of(Recipe recipe) {
  LinearFormats formats;
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles) formats.set(product, role, format_for(recipe, role));
  }
  return formats;
}

// The policy of a configuration for a model of 4 blocks: its short forms, then the given rules.
AutocastPolicy policy_of(PrecisionConfig config, Rules rules = {}) {
  config.rules = std::move(rules);
  return AutocastPolicy(expand(config, 4));
}

PrecisionConfig with_recipe(Recipe recipe, PrecisionPattern pattern = PrecisionPattern::kNone) {
  PrecisionConfig config;
  config.recipe = recipe;
  config.pattern = pattern;
  return config;
}

DType dtype_at(const AutocastPolicy& policy, std::string_view layer, Op op = Op::kLinear) {
  return compute_dtype(policy.at(layer), {}, op, DType::kF32, DType::kF32);
}

bool rounds(const AutocastPolicy& policy, std::string_view layer) { return policy.at(layer).linear.any(); }

TEST(LinearRules, TheModelsRecipeIsForAllLayersButTheHead) {
  const AutocastPolicy policy = policy_of(with_recipe(kMx));
  EXPECT_EQ(policy.at("blocks.0.mlp.up").linear, all_of(kMx));
  EXPECT_EQ(policy.at("head").linear, LinearFormats());
  EXPECT_EQ(policy_of({}).at("blocks.0.mlp.up").linear, LinearFormats());
}

TEST(LinearRules, RulesReplaceTheModelsRecipe) {
  const AutocastPolicy policy = policy_of(with_recipe(kMx), {{.match = "blocks.0", .format = DType::kBF16},
                                                             {.match = "blocks.*.mlp", .format = kCurrent},
                                                             {.match = "blocks.2.mlp", .format = DType::kBF16},
                                                             {.match = "head", .format = kBlock}});
  EXPECT_EQ(policy.at("blocks.1.mlp.up").linear, all_of(kCurrent));
  EXPECT_EQ(policy.at("blocks.0.attention.qkv").linear, LinearFormats()) << "a dtype: not rounded";
  EXPECT_EQ(policy.at("blocks.0.mlp.up").linear, all_of(kCurrent)) << "the last match";
  EXPECT_EQ(policy.at("blocks.2.mlp.up").linear, LinearFormats());
  EXPECT_EQ(policy.at("blocks.1.attention.qkv").linear, all_of(kMx));
  EXPECT_EQ(policy.at("head").linear, all_of(kBlock));
}

TEST(LinearRules, RulesOfTheOpReachTheHeadToo) {
  const AutocastPolicy policy =
      policy_of(with_recipe(kMx), {{.op = Op::kLinear, .format = kCurrent},
                                   {.match = "blocks.0.mlp", .op = Op::kLinear, .format = kBlock},
                                   {.match = "blocks.1", .op = Op::kLinear, .format = CastRule::kLow},
                                   {.match = "blocks.2", .op = Op::kAttention, .format = DType::kF32}});
  EXPECT_EQ(policy.at("blocks.0.attention.qkv").linear, all_of(kCurrent));
  EXPECT_EQ(policy.at("blocks.0.mlp.up").linear, all_of(kBlock));
  EXPECT_EQ(policy.at("blocks.1.mlp.up").linear, LinearFormats());
  EXPECT_EQ(policy.at("blocks.2.mlp.up").linear, all_of(kCurrent)) << "that rule is about attention";
  EXPECT_EQ(policy.at("head").linear, all_of(kCurrent)) << "all linear layers";
}

TEST(LinearRules, RulesOfOperandsChangeThoseAlone) {
  const AutocastPolicy policy = policy_of(
      with_recipe(kMx), {{.match = "blocks.0.mlp.up", .op = Op::kLinear, .format = kBlock},
                         {.role = Role::kGradient, .format = Recipe{Scaling::kCurrent, Format::kE4M3}},
                         {.product = kWgrad, .format = kCurrent},
                         {.match = "*", .product = kWgrad, .role = Role::kGradient, .format = CastRule::kLow}});
  LinearFormats expected = all_of(kBlock);
  expected.set(kDgrad, Role::kGradient, TensorFormat{Format::kE4M3, Scaling::kCurrent});
  expected.set(kWgrad, Role::kActivation, format_for(kCurrent, Role::kActivation));
  expected.set(kWgrad, Role::kGradient, std::nullopt);
  EXPECT_EQ(policy.at("blocks.0.mlp.up").linear, expected);
  EXPECT_EQ(policy.at("blocks.0.mlp.down").linear.at(kFprop, Role::kWeight), format_for(kMx, Role::kWeight));
}

TEST(LinearRules, ARuleOfTheWholeLayerReplacesEarlierOnesOfOperands) {
  const PrecisionRule operand{.match = "a", .product = kFprop, .format = kBlock};
  EXPECT_EQ(policy_of({}, {operand, {.match = "a", .format = kMx}}).at("a").linear, all_of(kMx));
  EXPECT_EQ(policy_of({}, {operand, {.match = "a", .format = DType::kF16}}).at("a").linear, LinearFormats());
  EXPECT_TRUE(policy_of({}, {operand, {.match = "a", .op = Op::kGelu, .format = DType::kF16}}).at("a").linear.any());
}

TEST(LinearRules, LaterRulesWinAmongEquals) {
  const AutocastPolicy policy = policy_of(
      {}, {{.match = "a.b", .format = kMx}, {.match = "a.c", .format = kBlock}, {.match = "a.b", .format = kCurrent}});
  EXPECT_EQ(policy.at("a.b").linear, all_of(kCurrent));
}

TEST(LinearRules, RoundedLayersComputeInWhatLowMeans) {
  PrecisionConfig config = with_recipe(kMx);
  config.compute = DType::kF16;
  const AutocastPolicy policy = policy_of(config, {{.match = "a", .format = DType::kF32},
                                                   {.match = "a", .format = kMx},
                                                   {.match = "b", .op = Op::kLinear, .format = DType::kF32},
                                                   {.match = "b", .format = kMx},
                                                   {.match = "c", .role = Role::kWeight, .format = kMx}});
  EXPECT_EQ(dtype_at(policy, "x"), DType::kF16);
  EXPECT_EQ(dtype_at(policy, "a"), DType::kF32) << "the layer's low precision";
  EXPECT_EQ(dtype_at(policy, "b"), DType::kF16) << "a rule with an op leaves low precision alone";
  for (const char* layer : {"x", "a", "b", "c"}) EXPECT_EQ(policy.at(layer).linear, all_of(kMx)) << layer;
}

TEST(LinearRules, ScopesThatNameADtypeOrSwitchAutocastOffRoundNothing) {
  Precision precision = policy_of(with_recipe(kMx)).at("x");
  EXPECT_EQ(linear_formats(precision, {}), all_of(kMx));
  EXPECT_EQ(linear_formats(precision, {.enabled = true}), all_of(kMx));
  EXPECT_EQ(linear_formats(precision, {.enabled = false}), LinearFormats());
  EXPECT_EQ(linear_formats(precision, {.dtype = DType::kBF16}), LinearFormats());
  precision.enabled = false;
  EXPECT_EQ(linear_formats(precision, {}), LinearFormats());
}

TEST(LinearRules, Fp32ProductsOfTheModelReachEveryLayer) {
  EXPECT_EQ(policy_of({}).at("head").fp32_products, Fp32Products::kFp32);
  PrecisionConfig config;
  config.fp32_products = Fp32Products::kBf16x6;
  const AutocastPolicy policy = policy_of(config);
  for (const char* layer : {"blocks.0.mlp.up", "head"}) {
    EXPECT_EQ(policy.at(layer).fp32_products, Fp32Products::kBf16x6);
  }
}

TEST(LinearRules, TheLastFp32ProductsWin) {
  PrecisionConfig config;
  config.fp32_products = Fp32Products::kBf16x3;
  const AutocastPolicy policy = policy_of(config, {{.match = "blocks", .format = Fp32Products::kBf16x6},
                                                   {.match = "blocks.0.mlp", .format = Fp32Products::kTf32},
                                                   {.match = "blocks.1.mlp", .format = Fp32Products::kTf32},
                                                   {.match = "blocks.1", .op = Op::kLinear, .format = DType::kF32},
                                                   {.match = "blocks.2", .format = Fp32Products::kTf32},
                                                   {.match = "blocks.2", .format = Fp32Products::kBf16x3},
                                                   {.match = "blocks.3", .op = Op::kAttention, .format = DType::kF32}});
  const auto at = [&](const char* layer) { return policy.at(layer).fp32_products; };
  EXPECT_EQ(at("head"), Fp32Products::kBf16x3);
  EXPECT_EQ(at("blocks.0.mlp.up"), Fp32Products::kTf32);
  EXPECT_EQ(at("blocks.0.attention.qkv"), Fp32Products::kBf16x6);
  EXPECT_EQ(at("blocks.1.mlp.up"), Fp32Products::kFp32) << "fp32 multiplies the numbers as they are";
  EXPECT_EQ(at("blocks.2.mlp.up"), Fp32Products::kBf16x3) << "the later of equal patterns";
  EXPECT_EQ(at("blocks.3.mlp.up"), Fp32Products::kBf16x6) << "that rule is about attention";
}

// The method for fp32 products changes nothing else, and only a change of fp32 changes it.
TEST(LinearRules, Fp32ProductsAndDtypesAreSettingsApart) {
  const AutocastPolicy policy = policy_of(with_recipe(kMx), {{.match = "a", .format = DType::kF32},
                                                             {.match = "a", .format = Fp32Products::kTf32},
                                                             {.match = "a.b", .format = Fp32Products::kBf16x6},
                                                             {.match = "c", .format = Fp32Products::kBf16x6},
                                                             {.match = "c.d", .format = kBlock},
                                                             {.match = "c.e", .format = DType::kF16}});
  EXPECT_EQ(dtype_at(policy, "a.b"), DType::kF32);
  EXPECT_EQ(policy.at("a.b").fp32_products, Fp32Products::kBf16x6);
  EXPECT_EQ(policy.at("a.b").linear, LinearFormats());
  EXPECT_EQ(dtype_at(policy, "c"), DType::kBF16);
  EXPECT_EQ(policy.at("c").linear, all_of(kMx));
  for (const char* layer : {"c", "c.d", "c.e"}) EXPECT_EQ(policy.at(layer).fp32_products, Fp32Products::kBf16x6);
}

// ---- Short forms.

TEST(PrecisionPatternTest, AllLowRoundsTheHeadAsWell) {
  const AutocastPolicy policy = policy_of(with_recipe(kCurrent, PrecisionPattern::kAllLow));
  EXPECT_TRUE(rounds(policy, "head"));
  EXPECT_TRUE(rounds(policy, "blocks.0.mlp.up"));
}

TEST(PrecisionPatternTest, Fp32EndsLowCore) {
  const AutocastPolicy policy = policy_of(with_recipe(kCurrent, PrecisionPattern::kFp32EndsLowCore));
  EXPECT_EQ(dtype_at(policy, "head"), DType::kF32);
  EXPECT_EQ(dtype_at(policy, "blocks.0.mlp.up"), DType::kBF16);
  EXPECT_TRUE(rounds(policy, "blocks.0.mlp.up"));
  EXPECT_FALSE(rounds(policy, "head"));
  PrecisionConfig plain{.pattern = PrecisionPattern::kFp32EndsLowCore, .fp32_products = Fp32Products::kTf32};
  EXPECT_EQ(dtype_at(policy_of(plain), "head"), DType::kF32);
  EXPECT_EQ(policy_of(plain).at("head").fp32_products, Fp32Products::kTf32) << "fp32_products apply to fp32 layers";
}

TEST(PrecisionPatternTest, AttentionHighIsUnroundedOrFp32) {
  const AutocastPolicy rounded = policy_of(with_recipe(kCurrent, PrecisionPattern::kAttentionHigh));
  EXPECT_FALSE(rounds(rounded, "blocks.2.attention.qkv"));
  EXPECT_EQ(dtype_at(rounded, "blocks.2.attention.qkv"), DType::kBF16);
  EXPECT_TRUE(rounds(rounded, "blocks.2.mlp.down"));
  const AutocastPolicy plain = policy_of({.pattern = PrecisionPattern::kAttentionHigh});
  EXPECT_EQ(dtype_at(plain, "blocks.2.attention.out"), DType::kF32);
  EXPECT_EQ(dtype_at(plain, "blocks.2.attention", Op::kAttention), DType::kF32);
  EXPECT_EQ(dtype_at(plain, "blocks.2.mlp.down"), DType::kBF16);
}

TEST(PrecisionPatternTest, FirstAndLastBlocksHigh) {
  const AutocastPolicy policy = policy_of(with_recipe(kCurrent, PrecisionPattern::kFirstLastKHigh));
  for (const char* layer : {"blocks.0.mlp.up", "blocks.0.attention.qkv", "blocks.3.mlp.down"}) {
    EXPECT_FALSE(rounds(policy, layer)) << layer;
  }
  for (const char* layer : {"blocks.1.mlp.up", "blocks.2.attention.out"}) EXPECT_TRUE(rounds(policy, layer)) << layer;
}

TEST(PrecisionPatternTest, RulesOfTheConfigurationWin) {
  const AutocastPolicy policy = policy_of(with_recipe(kCurrent, PrecisionPattern::kFirstLastKHigh),
                                          {{.match = "blocks.0.mlp.up", .format = Recipe{Scaling::kTwoLevel}}});
  EXPECT_TRUE(policy.at("blocks.0.mlp.up").linear.uses(Scaling::kTwoLevel));
  EXPECT_FALSE(rounds(policy, "blocks.0.mlp.down"));
}

TEST(PrecisionPatternTest, AtLeastOneBlockStaysLow) {
  PrecisionConfig config = with_recipe(kCurrent, PrecisionPattern::kFirstLastKHigh);
  EXPECT_NO_THROW(expand(config, 3));
  for (const int64_t blocks : {1, 2}) EXPECT_NE(error_of([&] { expand(config, blocks); }), "") << blocks;
  config.pattern_blocks = 2;
  EXPECT_NO_THROW(expand(config, 5));
  EXPECT_EQ(error_of([&] { expand(config, 4); }),
            "precision.pattern: first_last_k_high with precision.pattern_blocks = 2 at each end leaves none of the "
            "model's 4 blocks low: give fewer, a model of more layers (at least 3), or another precision.pattern");
}

TEST(ShortForms, StandForRulesBeforeTheConfigurationsOwn) {
  PrecisionConfig config = with_recipe(kMx, PrecisionPattern::kFirstLastKHigh);
  config.fp32_products = Fp32Products::kTf32;
  config.rules = {{.match = "blocks.1.mlp", .format = DType::kF32}};
  std::string text;
  for (const PrecisionRule& rule : expand(config, 4)) text += describe(rule) + " " + rule.source + "\n";
  EXPECT_EQ(text,
            "{format: bf16} precision.compute\n"
            "{op: linear, format: mxfp8} precision.recipe\n"
            "{match: head, op: linear, format: low} precision.recipe\n"
            "{match: blocks.0, format: bf16} precision.pattern\n"
            "{match: blocks.3, format: bf16} precision.pattern\n"
            "{op: linear, format: tf32} precision.fp32_products\n"
            "{match: blocks.1.mlp, format: fp32} \n");
}

// The rules alone, without the short forms, give the same precision.
TEST(ShortForms, AreTheSameAsTheirRules) {
  for (const PrecisionPattern pattern :
       {PrecisionPattern::kNone, PrecisionPattern::kAllLow, PrecisionPattern::kFp32EndsLowCore,
        PrecisionPattern::kAttentionHigh, PrecisionPattern::kFirstLastKHigh}) {
    for (const DType compute : {DType::kF32, DType::kBF16, DType::kF16}) {
      PrecisionConfig config = with_recipe(kMx, pattern);
      config.compute = compute;
      config.fp32_products = Fp32Products::kBf16x3;
      const AutocastPolicy short_forms = policy_of(config), rules = policy_of({}, expand(config, 4));
      for (const char* layer : {"token_embedding", "blocks.0.mlp.up", "blocks.1.attention.qkv", "head"}) {
        EXPECT_EQ(short_forms.at(layer).linear, rules.at(layer).linear) << layer;
        EXPECT_EQ(short_forms.at(layer).fp32_products, rules.at(layer).fp32_products) << layer;
        for (int op = 0; op < kOpCount; ++op) {
          EXPECT_EQ(dtype_at(short_forms, layer, static_cast<Op>(op)), dtype_at(rules, layer, static_cast<Op>(op)));
        }
      }
    }
  }
}

TEST(ShortForms, FindAndLeaveFp16) {
  PrecisionConfig config;
  EXPECT_FALSE(config.uses_fp16());
  config.rules = {{.match = "a", .op = Op::kLinear, .format = DType::kF16}, {.match = "b", .format = kMx}};
  EXPECT_TRUE(config.uses_fp16());
  config.leave_fp16();
  EXPECT_FALSE(config.uses_fp16());
  EXPECT_EQ(config.rules[0].format, RuleFormat(DType::kBF16));
  config.compute = DType::kF16;
  EXPECT_TRUE(config.uses_fp16());
  config.leave_fp16();
  EXPECT_EQ(config.compute, DType::kBF16);
}

}  // namespace layer_formats_test
}  // namespace mantissa
