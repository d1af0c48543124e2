#include "amp/autocast_policy.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;

// The dtype that an op computes in, outside of any scope.
DType dtype_of(const AutocastPolicy& policy, std::string_view layer, Op op, DType first = kF32, DType widest = kF32) {
  return compute_dtype(policy.at(layer), AutocastState{}, op, first, widest);
}

TEST(AutocastPolicyTest, DefaultsByOp) {
  const AutocastPolicy policy({.dtype = kF16});
  for (const Op op : {Op::kLinear, Op::kAttention}) EXPECT_EQ(dtype_of(policy, "x", op), kF16) << name(op);
  for (const Op op : {Op::kLayerNorm, Op::kRmsNorm, Op::kCrossEntropy, Op::kEmbedding}) {
    EXPECT_EQ(dtype_of(policy, "x", op, kF16, kF16), kF32) << name(op);
  }
  EXPECT_EQ(dtype_of(policy, "x", Op::kAdd, kF16, kF32), kF32);
  EXPECT_EQ(dtype_of(policy, "x", Op::kAdd, kF16, kF16), kF16);
  for (const Op op : {Op::kGelu, Op::kSwiglu, Op::kReluSquared, Op::kRope, Op::kDropout}) {
    EXPECT_EQ(dtype_of(policy, "x", op, kF16, kF32), kF16) << name(op);
    EXPECT_EQ(dtype_of(policy, "x", op, kF32, kF32), kF32) << name(op);
  }
}

TEST(AutocastPolicyTest, SwitchedOffEveryOpTakesItsWidestInput) {
  AutocastConfig config{.enabled = false, .dtype = kBF16};
  config.ops[static_cast<size_t>(Op::kLinear)] = kF16;
  config.layers = {{"*", {}, kF16}};
  const AutocastPolicy policy(config);
  for (int op = 0; op < kOpCount; ++op) {
    EXPECT_EQ(dtype_of(policy, "blocks.0", static_cast<Op>(op), kBF16, kF32), kF32);
    EXPECT_EQ(dtype_of(policy, "blocks.0", static_cast<Op>(op), kBF16, kBF16), kBF16);
  }
}

TEST(AutocastPolicyTest, OpOverrides) {
  AutocastConfig config;
  config.ops[static_cast<size_t>(Op::kAttention)] = kF32;
  config.ops[static_cast<size_t>(Op::kLinear)] = kF16;
  config.ops[static_cast<size_t>(Op::kAdd)] = CastRule::kLow;
  config.ops[static_cast<size_t>(Op::kEmbedding)] = CastRule::kAsGiven;
  const AutocastPolicy policy(config);
  EXPECT_EQ(dtype_of(policy, "x", Op::kAttention, kBF16), kF32);
  EXPECT_EQ(dtype_of(policy, "x", Op::kLinear), kF16);
  EXPECT_EQ(dtype_of(policy, "x", Op::kAdd), kBF16);
  EXPECT_EQ(dtype_of(policy, "x", Op::kEmbedding, kBF16), kBF16);
  EXPECT_EQ(dtype_of(policy, "x", Op::kLayerNorm, kBF16), kF32);  // not named
}

TEST(AutocastPolicyTest, ALayerOverrideChangesWhatLowMeans) {
  AutocastConfig config;
  config.ops[static_cast<size_t>(Op::kAttention)] = kBF16;
  config.layers = {{"blocks.*.mlp", {}, kF16}};
  const AutocastPolicy policy(config);
  EXPECT_EQ(dtype_of(policy, "blocks.7.mlp", Op::kLinear), kF16);
  EXPECT_EQ(dtype_of(policy, "blocks.7.mlp.up", Op::kLinear), kF16);   // the layers below as well
  EXPECT_EQ(dtype_of(policy, "blocks.7.mlp", Op::kAttention), kBF16);  // named on its own
  EXPECT_EQ(dtype_of(policy, "blocks.7.mlp", Op::kLayerNorm), kF32);   // not low
  EXPECT_EQ(dtype_of(policy, "blocks.7.attention", Op::kLinear), kBF16);
  EXPECT_EQ(dtype_of(policy, "", Op::kLinear), kBF16);
}

TEST(AutocastPolicyTest, ALayerOverrideOfOneOp) {
  AutocastConfig config;
  config.layers = {{"head", Op::kLinear, kF32}, {"blocks.0", Op::kGelu, CastRule::kFp32}};
  const AutocastPolicy policy(config);
  EXPECT_EQ(dtype_of(policy, "head", Op::kLinear), kF32);
  EXPECT_EQ(dtype_of(policy, "head", Op::kAttention), kBF16);
  EXPECT_EQ(dtype_of(policy, "blocks.0.mlp", Op::kGelu, kBF16, kBF16), kF32);
  EXPECT_EQ(dtype_of(policy, "blocks.1.mlp", Op::kGelu, kBF16, kBF16), kBF16);
}

TEST(AutocastPolicyTest, TheMostSpecificPatternWinsWhateverTheOrder) {
  AutocastConfig config;
  config.layers = {{"blocks.3.mlp", {}, kF32}, {"blocks.*.mlp", {}, kF16}, {"blocks", {}, kBF16}};
  for (int rotation = 0; rotation < 3; ++rotation) {
    const AutocastPolicy policy(config);
    EXPECT_EQ(dtype_of(policy, "blocks.3.mlp.up", Op::kLinear), kF32);
    EXPECT_EQ(dtype_of(policy, "blocks.2.mlp.up", Op::kLinear), kF16);
    EXPECT_EQ(dtype_of(policy, "blocks.3.attention", Op::kLinear), kBF16);
    std::rotate(config.layers.begin(), config.layers.begin() + 1, config.layers.end());
  }
}

TEST(AutocastPolicyTest, OfEqualsTheLastWins) {
  AutocastConfig config;
  config.layers = {{"blocks.1?", {}, kF16}, {"blocks.?1", {}, kF32}};
  EXPECT_EQ(dtype_of(AutocastPolicy(config), "blocks.11", Op::kLinear), kF32);
  std::swap(config.layers[0], config.layers[1]);
  EXPECT_EQ(dtype_of(AutocastPolicy(config), "blocks.11", Op::kLinear), kF16);
  config.layers.assign(40, {"blocks.11", {}, kF16});  // enough to show a sort that does not keep the order of equals
  config.layers.back().setting = kF32;
  EXPECT_EQ(dtype_of(AutocastPolicy(config), "blocks.11", Op::kLinear), kF32);
}

TEST(AutocastPolicyTest, ALayersRuleReplacesTheDtypeNamedForTheOp) {
  AutocastConfig config;
  config.ops[static_cast<size_t>(Op::kLinear)] = kF16;
  config.layers = {{"head", Op::kLinear, kF32}, {"blocks.0", Op::kLinear, CastRule::kLow}};
  const AutocastPolicy policy(config);
  EXPECT_EQ(dtype_of(policy, "blocks.1", Op::kLinear), kF16);
  EXPECT_EQ(dtype_of(policy, "blocks.0", Op::kLinear), kBF16);
  EXPECT_EQ(dtype_of(policy, "head", Op::kLinear), kF32);
}

TEST(AutocastPolicyTest, AnOverrideOfTheOpBeatsOneOfTheWholeLayer) {
  AutocastConfig config;
  config.layers = {{"blocks.*", Op::kLinear, kF16}, {"blocks.3.mlp", {}, kF32}};
  const AutocastPolicy policy(config);
  EXPECT_EQ(dtype_of(policy, "blocks.3.mlp", Op::kLinear), kF16);
  EXPECT_EQ(dtype_of(policy, "blocks.3.mlp", Op::kAttention), kF32);
}

TEST(AutocastPolicyTest, Fp32SurvivesAScopeOfAnotherDtype) {
  AutocastConfig config;
  config.ops[static_cast<size_t>(Op::kAttention)] = kF32;
  config.layers = {{"head", {}, kF32}};
  const AutocastPolicy policy(config);
  const AutocastState scope{.dtype = kF16};
  EXPECT_EQ(compute_dtype(policy.at("blocks.0"), scope, Op::kLinear, kF32, kF32), kF16);
  EXPECT_EQ(compute_dtype(policy.at("blocks.0"), scope, Op::kAttention, kF32, kF32), kF32);
  EXPECT_EQ(compute_dtype(policy.at("head"), scope, Op::kLinear, kF32, kF32), kF32);
  EXPECT_EQ(compute_dtype(policy.at("head"), scope, Op::kLayerNorm, kF16, kF16), kF32);
}

TEST(AutocastPolicyTest, ReferencesStayValid) {
  AutocastConfig config;
  config.layers = {{"blocks.0", {}, kF16}};
  const AutocastPolicy policy(config);
  const Precision* first = &policy.at("blocks.0");
  for (int layer = 0; layer < 1000; ++layer) policy.at("blocks." + std::to_string(layer));
  EXPECT_EQ(&policy.at("blocks.0"), first);
  EXPECT_EQ(first->low, kF16);
}

TEST(AutocastPolicyTest, ThreadsMayShareAPolicy) {
  AutocastConfig config;
  config.layers = {{"blocks.*.mlp", {}, kF16}};
  const AutocastPolicy policy(config);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int layer = 0; layer < 500; ++layer) {
        const std::string path = "blocks." + std::to_string(layer) + (layer % 2 ? ".mlp" : ".attention");
        wrong[t] += policy.at(path).low != (layer % 2 ? kF16 : kBF16);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(AutocastPolicyTest, NamesPatternsThatMatchNothing) {
  AutocastConfig config;
  config.layers = {{"blocks.*.mpl", {}, kF16}, {"head", {}, kF32}};
  const AutocastPolicy policy(config);
  for (const char* path : {"", "blocks.0", "blocks.0.mlp", "head"}) policy.at(path);
  EXPECT_EQ(policy.unmatched_patterns(), std::vector<std::string>{"blocks.*.mpl"});
}

TEST(AutocastPolicyTest, RefusesWhatMakesNoSense) {
  EXPECT_THROW(AutocastPolicy({.dtype = DType::kI32}), ConfigError);
  AutocastConfig integer_op;
  integer_op.ops[static_cast<size_t>(Op::kLinear)] = DType::kU8;
  EXPECT_THROW(AutocastPolicy{integer_op}, ConfigError);
  AutocastConfig integer_layer;
  integer_layer.layers = {{"head", {}, DType::kI32}};
  EXPECT_THROW(AutocastPolicy{integer_layer}, ConfigError);
  AutocastConfig rule_without_op;
  rule_without_op.layers = {{"head", {}, CastRule::kFp32}};
  EXPECT_THROW(AutocastPolicy{rule_without_op}, ConfigError);
  AutocastConfig bad_pattern;
  bad_pattern.layers = {{"blocks..mlp", {}, kF16}};
  EXPECT_THROW(AutocastPolicy{bad_pattern}, ConfigError);
}

// The norms and the loss compute in fp32 always: a setting that could have no effect is refused, every other one taken.
TEST(AutocastPolicyTest, RefusesSettingsWithoutEffect) {
  for (int index = 0; index < kOpCount; ++index) {
    const Op op = static_cast<Op>(index);
    const bool fixed = op == Op::kLayerNorm || op == Op::kRmsNorm || op == Op::kCrossEntropy;
    for (const OpSetting setting : std::initializer_list<OpSetting>{
             CastRule::kLow, CastRule::kWidest, CastRule::kAsGiven, CastRule::kFp32, kF32, kBF16, kF16}) {
      const bool is_fp32 = setting == OpSetting(CastRule::kFp32) || setting == OpSetting(kF32);
      AutocastConfig everywhere, in_layer;
      everywhere.ops[static_cast<size_t>(index)] = setting;
      in_layer.layers = {{"blocks.*", op, setting}};
      for (const AutocastConfig& config : {everywhere, in_layer}) {
        if (fixed && !is_fp32) {
          EXPECT_THROW(AutocastPolicy{config}, ConfigError) << name(op);
        } else {
          EXPECT_NO_THROW(AutocastPolicy{config}) << name(op);
        }
      }
    }
  }
}

TEST(AutocastPolicyTest, SaysWhyASettingHasNoEffect) {
  const auto message = [](const AutocastConfig& config) -> std::string {
    try {
      AutocastPolicy policy(config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  AutocastConfig loss;
  loss.ops[static_cast<size_t>(Op::kCrossEntropy)] = kBF16;
  EXPECT_EQ(
      message(loss),
      "[autocast] cross_entropy must be fp32, got bf16: it always computes in fp32, and the loss reads the logits "
      "as they are; set the linear op of the head instead");
  AutocastConfig norm;
  norm.layers = {{"blocks.*", Op::kRmsNorm, CastRule::kAsGiven}};
  EXPECT_EQ(message(norm),
            "[autocast] rms_norm in layers matching 'blocks.*' must be fp32, got as_given: it always computes in fp32, "
            "and a norm's result is rounded to the dtype that its consumer computes in; set the consumer instead");
}

TEST(AutocastPolicyTest, ParsesNames) {
  EXPECT_EQ(require_op("layer_norm"), Op::kLayerNorm);
  EXPECT_EQ(require_op_setting("low"), OpSetting(CastRule::kLow));
  EXPECT_EQ(require_op_setting("widest"), OpSetting(CastRule::kWidest));
  EXPECT_EQ(require_op_setting("as_given"), OpSetting(CastRule::kAsGiven));
  EXPECT_EQ(require_op_setting("fp32"), OpSetting(CastRule::kFp32));
  EXPECT_EQ(require_op_setting("fp16"), OpSetting(kF16));
  EXPECT_THROW(require_op_setting("half"), ConfigError);
  try {
    require_op("layernorm");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "[autocast] expected an op (embedding, linear, attention, layer_norm, rms_norm, gelu, swiglu, "
                 "relu_squared, rope, add, dropout, cross_entropy), got 'layernorm'");
  }
}

}  // namespace
}  // namespace mantissa
