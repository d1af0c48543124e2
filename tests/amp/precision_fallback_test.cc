// When layers are raised to a higher precision, and what a raised layer computes in.
#include "amp/adaptive_precision.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "amp/autocast_policy.h"
#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr FallbackOptions kOptions{.overflows = 3, .window = 10, .clean_steps = 20};

TEST(PrecisionFallback, LiftsALayerThatOverflowsRepeatedlyWithinTheWindow) {
  PrecisionFallback fallback(kOptions);
  EXPECT_FALSE(fallback.overflowed(0, "a", 2));
  EXPECT_FALSE(fallback.overflowed(5, "a", 2));
  EXPECT_FALSE(fallback.overflowed(10, "a", 2));  // the first is 10 steps ago
  EXPECT_TRUE(fallback.lifts().empty());
  EXPECT_TRUE(fallback.overflowed(14, "a", 2));
  EXPECT_EQ(fallback.lifts(), (std::map<std::string, int>{{"a", 1}}));
  // The count starts again.
  EXPECT_FALSE(fallback.overflowed(15, "a", 1));
  EXPECT_FALSE(fallback.overflowed(16, "a", 1));
  EXPECT_TRUE(fallback.overflowed(17, "a", 1));
  EXPECT_EQ(fallback.lifts(), (std::map<std::string, int>{{"a", 2}}));
}

TEST(PrecisionFallback, CountsEachLayerForItself) {
  PrecisionFallback fallback(kOptions);
  for (int64_t step = 0; step < 2; ++step) {
    EXPECT_FALSE(fallback.overflowed(step, "a", 1));
    EXPECT_FALSE(fallback.overflowed(step, "b", 1));
  }
  EXPECT_TRUE(fallback.overflowed(2, "b", 1));
  EXPECT_EQ(fallback.lifts(), (std::map<std::string, int>{{"b", 1}}));
}

TEST(PrecisionFallback, WithoutRoomNothingIsLifted) {
  PrecisionFallback fallback({.overflows = 1});
  EXPECT_FALSE(fallback.overflowed(0, "a", 0));
  EXPECT_TRUE(fallback.lifts().empty());
}

TEST(PrecisionFallback, OffItDoesNothing) {
  PrecisionFallback fallback({});
  for (int64_t step = 0; step < 100; ++step) EXPECT_FALSE(fallback.overflowed(step, "a", 2));
  EXPECT_TRUE(fallback.state().empty());
}

// An overflow in step 4, then 20 clean steps: step 25 uses the lower precision again.
TEST(PrecisionFallback, GoesBackAfterCleanSteps) {
  PrecisionFallback fallback({.overflows = 1, .window = 10, .clean_steps = 20});
  fallback.overflowed(4, "a", 3);
  fallback.overflowed(4, "a", 2);
  EXPECT_FALSE(fallback.is_due(24));
  EXPECT_TRUE(fallback.settle(24).empty());
  EXPECT_TRUE(fallback.is_due(25));
  EXPECT_EQ(fallback.settle(25), std::vector<std::string>{"a"});
  EXPECT_EQ(fallback.lifts(), (std::map<std::string, int>{{"a", 1}}));
  EXPECT_FALSE(fallback.is_due(25));
  // From here on it takes twice as many clean steps.
  EXPECT_FALSE(fallback.is_due(64));
  EXPECT_TRUE(fallback.is_due(65));
}

TEST(PrecisionFallback, AnOverflowPutsOffTheReturn) {
  PrecisionFallback fallback({.overflows = 2, .window = 10, .clean_steps = 20});
  fallback.lift_now(0, "a", 1);
  EXPECT_FALSE(fallback.overflowed(15, "a", 0));
  EXPECT_FALSE(fallback.is_due(21));
  EXPECT_TRUE(fallback.is_due(36));
}

// A layer that keeps switching waits ever longer, up to 64 times the configured steps.
TEST(PrecisionFallback, EachReturnDoublesTheWaitUpToABound) {
  PrecisionFallback fallback({.overflows = 1, .window = 10, .clean_steps = 20});
  int64_t step = 0;
  for (int returns = 0; returns < 9; ++returns) {
    fallback.lift_now(step, "a", 1);
    const int64_t wait = 20 * std::min<int64_t>(int64_t{1} << returns, 64);
    EXPECT_FALSE(fallback.is_due(step + wait)) << returns;
    EXPECT_EQ(fallback.settle(step + wait + 1).size(), 1u) << returns;
    step += wait + 1;
  }
}

TEST(PrecisionFallback, TheWholeModelLeavesFp16AndGoesBack) {
  PrecisionFallback fallback({.clean_steps = 5});
  fallback.leave_fp16(3);
  EXPECT_TRUE(fallback.leaves_fp16());
  EXPECT_TRUE(fallback.lifts().empty());
  EXPECT_EQ(fallback.settle(9), std::vector<std::string>{PrecisionFallback::kWholeModel});
  EXPECT_FALSE(fallback.leaves_fp16());
}

TEST(PrecisionFallback, GoesOnFromItsState) {
  PrecisionFallback straight(kOptions);
  straight.overflowed(3, "a", 2);
  straight.overflowed(4, "a", 2);
  PrecisionFallback resumed(kOptions, straight.state());
  EXPECT_TRUE(resumed.overflowed(5, "a", 2));
  EXPECT_TRUE(straight.overflowed(5, "a", 2));
  EXPECT_EQ(resumed.state(), straight.state());
}

TEST(PrecisionFallback, RefusesOptionsWithoutSense) {
  EXPECT_THROW(validate(FallbackOptions{.overflows = -1}), ConfigError);
  EXPECT_THROW(validate(FallbackOptions{.overflows = 2, .window = 1}), ConfigError);
  EXPECT_THROW(validate(FallbackOptions{.window = 0}), ConfigError);
  EXPECT_THROW(validate(FallbackOptions{.clean_steps = 0}), ConfigError);
  EXPECT_NO_THROW(validate(kOptions));
}

// ---- Levels, as rules.

using Rules = std::vector<PrecisionRule>;

Precision precision_of(const Rules& rules, const std::string& layer) { return AutocastPolicy(rules).at(layer); }

// The rules, with the layer's op raised by this many levels.
Rules lifted(Rules rules, const std::string& layer, Op op, int levels) {
  const Rules last = lift_rules(layer, op, precision_of(rules, layer), levels);
  rules.insert(rules.end(), last.begin(), last.end());
  return rules;
}

DType dtype_of(const Precision& precision, Op op) { return compute_dtype(precision, {}, op, DType::kF32, DType::kF32); }

const Rules kDelayedInFp16 = {{.format = DType::kF16}, {.op = Op::kLinear, .format = *parse_recipe("delayed")}};

TEST(LayerLifts, GoUpALevelAtATime) {
  const std::string layer = "blocks.0.mlp.up";
  const Precision precision = precision_of(kDelayedInFp16, layer);
  EXPECT_EQ(lift_room(precision, Op::kLinear), 3);
  EXPECT_EQ(describe_lift(precision, Op::kLinear), "delayed:e4m3 in fp16");
  const std::pair<DType, const char*> expected[] = {
      {DType::kF16, "fp16"}, {DType::kBF16, "bf16"}, {DType::kF32, "fp32"}, {DType::kF32, "fp32"}};
  for (int levels = 1; levels <= 4; ++levels) {
    const Rules rules = lifted(kDelayedInFp16, layer, Op::kLinear, levels);
    const Precision after = precision_of(rules, layer);
    const auto& [dtype, text] = expected[levels - 1];
    EXPECT_FALSE(after.linear.any());
    EXPECT_EQ(dtype_of(after, Op::kLinear), dtype) << levels;
    EXPECT_EQ(describe_lift(after, Op::kLinear), text);
    EXPECT_EQ(lift_room(after, Op::kLinear), std::max(0, 3 - levels));
    EXPECT_TRUE(precision_of(rules, "blocks.0.mlp.down").linear.any()) << "others stay";
  }
}

// Raised layers override all rules.
TEST(LayerLifts, AreAboveEveryRule) {
  const Rules rules = {{.format = DType::kBF16},
                       {.op = Op::kLinear, .format = DType::kF16},
                       {.match = "a", .op = Op::kLinear, .format = *parse_recipe("current")},
                       {.match = "a", .product = Product::kForward, .format = *parse_recipe("mxfp8")}};
  EXPECT_FALSE(precision_of(lifted(rules, "a", Op::kLinear, 1), "a").linear.any());
  EXPECT_EQ(dtype_of(precision_of(lifted(rules, "a", Op::kLinear, 5), "a"), Op::kLinear), DType::kF32);
  EXPECT_EQ(dtype_of(precision_of(lifted(rules, "a", Op::kLinear, 5), "b"), Op::kLinear), DType::kF16);
}

// A scope with a lower dtype does not lower a raised layer.
TEST(LayerLifts, NoScopeLowersThem) {
  const Precision precision = precision_of(lifted({{.format = DType::kBF16}}, "a", Op::kLinear, 1), "a");
  EXPECT_EQ(compute_dtype(precision, {.enabled = true, .dtype = DType::kF16}, Op::kLinear, DType::kF32, DType::kF32),
            DType::kF32);
}

TEST(LayerLifts, Fp32ProductsStay) {
  const Rules rules = {{.format = DType::kBF16}, {.op = Op::kLinear, .format = Fp32Products::kTf32}};
  const Precision precision = precision_of(lifted(rules, "a", Op::kLinear, 1), "a");
  EXPECT_EQ(dtype_of(precision, Op::kLinear), DType::kF32);
  EXPECT_EQ(precision.fp32_products, Fp32Products::kTf32);
}

// The paths of linear layers can begin with that of an attention layer.
TEST(LayerLifts, AttentionIsLiftedAlone) {
  const Rules rules = lifted({{.format = DType::kF16}}, "blocks.0.attention", Op::kAttention, 1);
  EXPECT_EQ(dtype_of(precision_of(rules, "blocks.0.attention"), Op::kAttention), DType::kBF16);
  EXPECT_EQ(dtype_of(precision_of(rules, "blocks.0.attention.qkv"), Op::kLinear), DType::kF16);
}

// Recipes apply to linear layers only, so the first level of attention is another dtype.
TEST(LayerLifts, AttentionHasNoLevelOfRoundedOperands) {
  const std::string layer = "blocks.0.attention";
  EXPECT_EQ(lift_room(precision_of(kDelayedInFp16, layer), Op::kAttention), 2);
  EXPECT_EQ(describe_lift(precision_of(kDelayedInFp16, layer), Op::kAttention), "fp16");
  const DType expected[] = {DType::kBF16, DType::kF32, DType::kF32};
  for (int levels = 1; levels <= 3; ++levels) {
    const Precision after = precision_of(lifted(kDelayedInFp16, layer, Op::kAttention, levels), layer);
    EXPECT_EQ(dtype_of(after, Op::kAttention), expected[levels - 1]) << levels;
    EXPECT_EQ(lift_room(after, Op::kAttention), std::max(0, 2 - levels));
  }
}

TEST(LayerLifts, WhatIsFp32HasNoRoom) {
  for (const Op op : {Op::kLinear, Op::kAttention}) {
    EXPECT_EQ(lift_room(Precision{}, op), 0);
    EXPECT_EQ(lift_room(precision_of({{.format = DType::kF32}}, "a"), op), 0);
    EXPECT_EQ(lift_room(precision_of({{.format = DType::kBF16}, {.op = op, .format = DType::kF32}}, "a"), op), 0)
        << "whatever others compute in";
  }
  EXPECT_EQ(lift_room(precision_of({{.format = *parse_recipe("block")}}, "a"), Op::kLinear), 1);
}

}  // namespace
}  // namespace mantissa
