// What decides to which formats a linear layer rounds: four levels, and within each the most specific.
#include <gtest/gtest.h>

#include "amp/autocast_policy.h"
#include "core/base/error.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

using testing::error_of;

constexpr Recipe kMx{Scaling::kMicro}, kCurrent{Scaling::kCurrent}, kBlock{Scaling::kBlock};
constexpr auto kFprop = Product::kForward, kDgrad = Product::kInputGradient, kWgrad = Product::kWeightGradient;

LinearFormats all_of(Recipe recipe) {
  LinearFormats formats;
  for (const Product product : kAllProducts) {
    for (const Role role : kAllRoles) formats.set(product, role, format_for(recipe, role));
  }
  return formats;
}

LinearFormats formats_at(const AutocastConfig& config, std::string_view layer) {
  return AutocastPolicy(config).at(layer).linear;
}

TEST(LinearLevels, TheModelsRecipeIsForAllLayersButTheHead) {
  const AutocastConfig config{.recipe = kMx};
  EXPECT_EQ(formats_at(config, "blocks.0.mlp.up"), all_of(kMx));
  EXPECT_EQ(formats_at(config, "head"), LinearFormats());
  EXPECT_EQ(formats_at({}, "blocks.0.mlp.up"), LinearFormats());
}

TEST(LinearLevels, LayersReplaceTheModelsRecipe) {
  AutocastConfig config{.recipe = kMx};
  config.layers = {{.pattern = "blocks.*.mlp", .setting = kCurrent},
                   {.pattern = "blocks.0", .setting = DType::kBF16},
                   {.pattern = "head", .setting = kBlock}};
  EXPECT_EQ(formats_at(config, "blocks.1.mlp.up"), all_of(kCurrent));
  EXPECT_EQ(formats_at(config, "blocks.0.attention.qkv"), LinearFormats()) << "a dtype: not rounded";
  EXPECT_EQ(formats_at(config, "blocks.0.mlp.up"), all_of(kCurrent)) << "more literal characters";
  EXPECT_EQ(formats_at(config, "blocks.1.attention.qkv"), all_of(kMx));
  EXPECT_EQ(formats_at(config, "head"), all_of(kBlock));
}

TEST(LinearLevels, TheOpReplacesLayers) {
  AutocastConfig config{.recipe = kMx};
  config.ops[static_cast<size_t>(Op::kLinear)] = OpSetting(kCurrent);
  config.layers = {{.pattern = "blocks.0", .setting = DType::kBF16},
                   {.pattern = "blocks.0.mlp", .op = Op::kLinear, .setting = kBlock},
                   {.pattern = "blocks.1", .op = Op::kLinear, .setting = CastRule::kLow}};
  EXPECT_EQ(formats_at(config, "blocks.0.attention.qkv"), all_of(kCurrent));
  EXPECT_EQ(formats_at(config, "blocks.0.mlp.up"), all_of(kBlock));
  EXPECT_EQ(formats_at(config, "blocks.1.mlp.up"), LinearFormats());
  EXPECT_EQ(formats_at(config, "head"), all_of(kCurrent)) << "all linear layers";
}

TEST(LinearLevels, OperandsReplaceAll) {
  AutocastConfig config{.recipe = kMx};
  config.layers = {{.pattern = "blocks.0.mlp.up", .op = Op::kLinear, .setting = kBlock},
                   {.pattern = "**", .setting = Recipe{Scaling::kCurrent, Format::kE4M3}, .role = Role::kGradient},
                   {.pattern = "**", .setting = kCurrent, .product = kWgrad},
                   {.pattern = "*", .setting = CastRule::kLow, .product = kWgrad, .role = Role::kGradient}};
  LinearFormats expected = all_of(kBlock);
  expected.set(kDgrad, Role::kGradient, TensorFormat{Format::kE4M3, Scaling::kCurrent});
  expected.set(kWgrad, Role::kActivation, format_for(kCurrent, Role::kActivation));
  expected.set(kWgrad, Role::kGradient, std::nullopt);
  EXPECT_EQ(formats_at(config, "blocks.0.mlp.up"), expected);
  EXPECT_EQ(formats_at(config, "blocks.0.mlp.down").at(kFprop, Role::kWeight), format_for(kMx, Role::kWeight));
}

// Of overrides alike the later one.
TEST(LinearLevels, LaterOverridesWinAmongEquals) {
  AutocastConfig config;
  config.layers = {{.pattern = "a.b", .setting = kMx},
                   {.pattern = "a.c", .setting = kBlock},
                   {.pattern = "a.b", .setting = kCurrent}};
  EXPECT_EQ(formats_at(config, "a.b"), all_of(kCurrent));
}

TEST(LinearLevels, RoundedLayersComputeInWhatLowMeans) {
  AutocastConfig config{.dtype = DType::kF16, .recipe = kMx};
  config.ops[static_cast<size_t>(Op::kLinear)] = OpSetting(kMx);
  const AutocastPolicy policy(config);
  EXPECT_EQ(compute_dtype(policy.at("x"), {}, Op::kLinear, DType::kF32, DType::kF32), DType::kF16);
}

TEST(LinearLevels, ScopesThatNameADtypeOrSwitchAutocastOffRoundNothing) {
  const AutocastPolicy policy(AutocastConfig{.recipe = kMx});
  const Precision& precision = policy.at("x");
  EXPECT_EQ(linear_formats(precision, {}), all_of(kMx));
  EXPECT_EQ(linear_formats(precision, {.enabled = true}), all_of(kMx));
  EXPECT_EQ(linear_formats(precision, {.enabled = false}), LinearFormats());
  EXPECT_EQ(linear_formats(precision, {.dtype = DType::kBF16}), LinearFormats());
  EXPECT_EQ(linear_formats(AutocastPolicy(AutocastConfig{.enabled = false, .recipe = kMx}).at("x"), {}),
            LinearFormats());
}

std::string refusal_of(const LayerOverride& layer) {
  AutocastConfig config;
  config.layers = {layer};
  return error_of([&] { AutocastPolicy policy(config); });
}

TEST(LinearLevels, SettingsWithoutAMeaningAreRefused) {
  EXPECT_EQ(refusal_of({.pattern = "a", .op = Op::kAttention, .setting = kMx}),
            "[autocast] attention in layers matching 'a' must be low, widest, as_given, fp32, bf16 or fp16, got mxfp8: "
            "only linear layers round their operands to formats of 8 and 4 bits");
  EXPECT_EQ(refusal_of({.pattern = "a", .op = Op::kGelu, .setting = kMx, .role = Role::kWeight}),
            "[autocast] 'a' names a product or a role of gelu: only linear layers have them; give op: linear or any");
  EXPECT_EQ(refusal_of({.pattern = "a", .setting = kMx, .product = kFprop, .role = Role::kGradient}),
            "[autocast] 'a' names the gradient of fprop, which multiplies no such thing: fprop is of activations and "
            "weights, dgrad of gradients and weights, wgrad of gradients and activations");
  EXPECT_EQ(refusal_of({.pattern = "a", .setting = DType::kBF16, .role = Role::kWeight}),
            "[autocast] 'a' names a product or a role: expected a recipe, or low for what the layer computes in, got "
            "bf16");
  AutocastConfig ops;
  ops.ops[static_cast<size_t>(Op::kAttention)] = OpSetting(kMx);
  EXPECT_EQ(error_of([&] { AutocastPolicy policy(ops); }),
            "[autocast] attention must be low, widest, as_given, fp32, bf16 or fp16, got mxfp8: only linear layers "
            "round their operands to formats of 8 and 4 bits");
}

Fp32Products products_at(const AutocastConfig& config, std::string_view layer) {
  return AutocastPolicy(config).at(layer).fp32_products;
}

TEST(LinearLevels, Fp32ProductsOfTheModelReachEveryLayer) {
  EXPECT_EQ(products_at({}, "head"), Fp32Products::kFp32);
  const AutocastConfig config{.fp32_products = Fp32Products::kBf16x6};
  for (const char* layer : {"blocks.0.mlp.up", "head"}) EXPECT_EQ(products_at(config, layer), Fp32Products::kBf16x6);
}

TEST(LinearLevels, Fp32ProductsOfTheMostSpecificOverrideWin) {
  AutocastConfig config{.fp32_products = Fp32Products::kBf16x3};
  config.layers = {{.pattern = "blocks.0.mlp", .fp32_products = Fp32Products::kTf32},
                   {.pattern = "blocks", .fp32_products = Fp32Products::kBf16x6},
                   {.pattern = "blocks.1", .op = Op::kLinear, .fp32_products = Fp32Products::kFp32},
                   {.pattern = "blocks.1.mlp", .fp32_products = Fp32Products::kTf32},
                   {.pattern = "blocks.2", .fp32_products = Fp32Products::kTf32},
                   {.pattern = "blocks.2", .fp32_products = Fp32Products::kBf16x3}};
  EXPECT_EQ(products_at(config, "head"), Fp32Products::kBf16x3);
  EXPECT_EQ(products_at(config, "blocks.0.mlp.up"), Fp32Products::kTf32) << "more literal characters";
  EXPECT_EQ(products_at(config, "blocks.0.attention.qkv"), Fp32Products::kBf16x6);
  EXPECT_EQ(products_at(config, "blocks.1.mlp.up"), Fp32Products::kFp32) << "the op is above the layer";
  EXPECT_EQ(products_at(config, "blocks.2.mlp.up"), Fp32Products::kBf16x3) << "of equals the later one";
}

// Each of the two settings of an override leaves the other alone.
TEST(LinearLevels, Fp32ProductsAndDtypesAreSettingsApart) {
  AutocastConfig config{.dtype = DType::kBF16, .recipe = kMx};
  config.layers = {{.pattern = "a", .setting = DType::kF32, .fp32_products = Fp32Products::kTf32},
                   {.pattern = "a.b", .fp32_products = Fp32Products::kBf16x6},
                   {.pattern = "c", .fp32_products = Fp32Products::kBf16x6}};
  const AutocastPolicy policy(config);
  const auto compute = [&](const char* layer) {
    return compute_dtype(policy.at(layer), {}, Op::kLinear, DType::kF32, DType::kF32);
  };
  EXPECT_EQ(compute("a.b"), DType::kF32) << "of the override that says so";
  EXPECT_EQ(policy.at("a.b").fp32_products, Fp32Products::kBf16x6);
  EXPECT_EQ(policy.at("a.b").linear, LinearFormats());
  EXPECT_EQ(compute("c"), DType::kBF16);
  EXPECT_EQ(policy.at("c").linear, all_of(kMx));
}

TEST(LinearLevels, Fp32ProductsAreOfWholeLinearLayers) {
  const auto refusal = [](LayerOverride layer) {
    AutocastConfig config;
    config.layers = {std::move(layer)};
    return error_of([&] { AutocastPolicy policy(config); });
  };
  EXPECT_EQ(
      refusal({.pattern = "a", .op = Op::kGelu, .fp32_products = Fp32Products::kTf32}),
      "[autocast] 'a' sets fp32_products of gelu: they are set for linear layers, all three products at once; give "
      "op: linear or any, and no product or role");
  EXPECT_EQ(refusal({.pattern = "a", .setting = kMx, .product = kFprop, .fp32_products = Fp32Products::kTf32}),
            "[autocast] 'a' sets fp32_products of single products or roles: they are set for linear layers, all three "
            "products at once; give op: linear or any, and no product or role");
  EXPECT_EQ(refusal({.pattern = "a"}),
            "[autocast] 'a' says nothing: expected a dtype, a rule, a recipe or how fp32 products are made");
}

}  // namespace
}  // namespace mantissa
