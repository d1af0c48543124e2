#include "tools/lab/advise/plan/layer_options.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "tests/tools/train/program.h"
#include "tools/train/dry_run.h"

namespace mantissa::testing {
namespace {

Config small_config(const SmallRun& run) { return load_config(run.config_path()); }

size_t option_named(const PlannedPlace& layer, const std::string& name) {
  const auto found = std::find_if(layer.options.begin(), layer.options.end(),
                                  [&](const PlaceOption& option) { return option.name == name; });
  if (found == layer.options.end()) throw std::runtime_error(layer.name() + " has no option " + name);
  return static_cast<size_t>(found - layer.options.begin());
}

TEST(LayerOptions, AreThoseOfEveryLinearLayerAndAttention) {
  const SmallRun run("options");
  const auto layers = planned_layers(small_config(run), DType::kBF16, {"current"});
  // qkv, attention, out, up, down of two blocks, and the head.
  ASSERT_EQ(layers.size(), 11u);
  for (const PlannedPlace& layer : layers) {
    EXPECT_EQ(layer.options[0].name, "fp32");
    EXPECT_EQ(layer.options[1].name, "bf16");
    EXPECT_EQ(layer.options.size(), layer.op == Op::kAttention ? 2u : 2u + 7u) << layer.name();
    EXPECT_TRUE(layer.refusals.empty());
  }
  EXPECT_EQ(layers[0].options.back().name, "current");
  EXPECT_EQ(layers[0].options.back().products.size(), 3u);
}

TEST(LayerOptions, LeaveOutWhatSizesRefuse) {
  const SmallRun run("options_refused");
  const auto layers = planned_layers(small_config(run), DType::kBF16, {"block"});  // of 128; the model is 32 wide
  const auto up =
      std::find_if(layers.begin(), layers.end(), [](const auto& one) { return one.layer == "blocks.0.mlp.up"; });
  ASSERT_NE(up, layers.end());
  EXPECT_EQ(up->refusals.size() + up->options.size(), 2u + 7u);
  EXPECT_FALSE(up->refusals.empty());
  EXPECT_NE(up->refusals[0].find("needs a multiple of 128"), std::string::npos) << up->refusals[0];
}

TEST(LayerOptions, BecomeAConfigurationThatComputesSo) {
  const SmallRun run("options_config");
  const Config config = small_config(run);
  const auto layers = planned_layers(config, DType::kBF16, {"current"});
  Plan plan(layers.size(), 1);
  for (size_t i = 0; i < layers.size(); ++i) {
    const PlannedPlace& layer = layers[i];
    if (layer.layer == "blocks.0.mlp.up") plan[i] = static_cast<int>(option_named(layer, "fp32"));
    if (layer.layer == "blocks.1.mlp.up") plan[i] = static_cast<int>(option_named(layer, "current"));
    if (layer.layer == "blocks.1.mlp.down") plan[i] = static_cast<int>(option_named(layer, "current in fprop, wgrad"));
    if (layer.op == Op::kAttention && layer.layer == "blocks.0.attention") plan[i] = 0;
  }
  // As it is written, and read back.
  const Config planned = parse_config(to_yaml(with_plan(config, DType::kBF16, layers, plan)), "plan");
  for (const PlacedOp& op : ops_of(planned)) {
    const auto rounds = [&](Product product) { return op.formats.rounds(product); };
    if (op.op == Op::kAttention) {
      EXPECT_EQ(op.compute, op.layer == "blocks.0.attention" ? DType::kF32 : DType::kBF16) << op.layer;
    }
    if (op.op != Op::kLinear) continue;
    EXPECT_EQ(op.compute, op.layer == "blocks.0.mlp.up" ? DType::kF32 : DType::kBF16) << op.layer;
    const bool all = op.layer == "blocks.1.mlp.up", some = op.layer == "blocks.1.mlp.down";
    EXPECT_EQ(rounds(Product::kForward), all || some) << op.layer;
    EXPECT_EQ(rounds(Product::kInputGradient), all) << op.layer;
    EXPECT_EQ(rounds(Product::kWeightGradient), all || some) << op.layer;
  }
}

// Settings about weights in 16 bits are the plan's, and mean nothing to a session whose weights are fp32.
TEST(LayerOptions, AreTriedOnFp32WeightsWhateverIsSaidOf16BitOnes) {
  const SmallRun run("options_weights");
  for (const std::string setting :
       {"optimizer.weight_rounding=stochastic", "optimizer.master=kahan", "optimizer.master=none_stochastic"}) {
    const Config config = load_config(run.config_path(), {setting});
    const auto layers = planned_layers(config, DType::kBF16, {"current"});
    const Plan plan(layers.size(), 1);
    const Config tried = with_plan(config, DType::kBF16, layers, plan, WorkingWeights::kFp32);
    EXPECT_EQ(tried.precision.weights, WorkingWeights::kFp32);
    EXPECT_NO_THROW(ops_of(tried)) << setting;
    const Config planned = with_plan(config, DType::kBF16, layers, plan);
    EXPECT_EQ(planned.optimizer.adamw.master, config.optimizer.adamw.master) << setting;
    EXPECT_EQ(planned.optimizer.adamw.weight_rounding, config.optimizer.adamw.weight_rounding) << setting;
  }
}

// As a plan of fp32 throughout has where the embedding is the head's weight and there are no positions to embed.
TEST(LayerOptions, LeaveOutWhatIsSaidOf16BitWeightsWhereThereAreNone) {
  const SmallRun run("options_no_weights");
  for (const std::string setting : {"optimizer.weight_rounding=stochastic", "optimizer.master=kahan"}) {
    const Config config = load_config(run.config_path(), {setting, "model.position=rope", "model.tie_head=true"});
    const auto layers = planned_layers(config, DType::kBF16, {"current"});
    EXPECT_NO_THROW(ops_of(with_plan(config, DType::kBF16, layers, Plan(layers.size(), 0)))) << setting;
    const Config low = with_plan(config, DType::kBF16, layers, Plan(layers.size(), 1));
    EXPECT_EQ(low.optimizer.adamw.master, config.optimizer.adamw.master) << setting;
    EXPECT_EQ(low.optimizer.adamw.weight_rounding, config.optimizer.adamw.weight_rounding) << setting;
  }
}

TEST(LayerOptions, LowerWhatAnAnalysisTries) {
  const SmallRun run("options_decisions");
  const auto layers = planned_layers(small_config(run), DType::kBF16, {"nvfp4"});
  const PlannedPlace& qkv = layers[0];
  EXPECT_TRUE(decisions_of(qkv, qkv.options[0], DType::kBF16).empty());
  const auto lowered = decisions_of(qkv, qkv.options[option_named(qkv, "nvfp4 in fprop, dgrad")], DType::kBF16);
  ASSERT_EQ(lowered.size(), 3u);
  EXPECT_EQ(name(lowered[0]), "blocks.0.attention.qkv bf16");
  EXPECT_EQ(name(lowered[1]), "blocks.0.attention.qkv fprop nvfp4");
  EXPECT_EQ(name(lowered[2]), "blocks.0.attention.qkv dgrad nvfp4");
}

TEST(LayerOptions, RefuseWhatIsNoRecipe) {
  const SmallRun run("options_recipes");
  EXPECT_THROW(planned_layers(small_config(run), DType::kBF16, {"fp8"}), ConfigError);
  EXPECT_THROW(planned_layers(small_config(run), DType::kBF16, {"delayed"}), ConfigError);
}

}  // namespace
}  // namespace mantissa::testing
