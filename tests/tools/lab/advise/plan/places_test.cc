// Options of places, and the configurations that plans produce.
#include "tools/lab/advise/plan/places.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "tests/program/program.h"
#include "tools/lab/advise/plan/plan_advice.h"
#include "tools/train/step/dry_run.h"

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
  const auto layers = planned_layers(small_config(run), DType::kBF16, {"block"});  // blocks of 128; the width is 32
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
  // Written and read back.
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

// Settings for 16-bit weights belong to the plan and do not apply to a session with fp32 weights.
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

// Such a plan uses fp32 throughout, with tied embeddings and no position embeddings.
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

// ---- Formats that layers share.

const std::vector<std::string> kAll = {kMoments, kMasters, kWire};

std::string text_of(const PlannedPlace& place) {
  std::string text = place.name() + ":";
  for (const PlaceOption& option : place.options) {
    text += (option.name == place.configured ? " *" : " ") + option.name;
  }
  return text;
}

std::vector<std::string> texts(const Config& config, DType low, const std::vector<std::string>& kinds, int ranks) {
  std::vector<std::string> found;
  for (const PlannedPlace& place : planned_shared(config, low, kinds, ranks)) found.push_back(text_of(place));
  return found;
}

TEST(SharedOptions, AreThoseOfWhatTheOptimizerKeepsAndOfTheWire) {
  const SmallRun run("shared_options");
  const Config config = load_config(run.config_path());
  const std::vector<std::string> moments = {"optimizer.first_moment: *fp32 bf16 8bit",
                                            "optimizer.second_moment: *fp32 bf16_stochastic 8bit"};
  std::vector<std::string> all = moments;
  all.emplace_back("optimizer.master: *fp32 kahan none_stochastic");
  EXPECT_EQ(texts(config, DType::kBF16, kAll, 1), all) << "one rank sends nothing";
  all.emplace_back("comm.wire_dtype: fp32 *bf16");
  EXPECT_EQ(texts(config, DType::kBF16, kAll, 2), all);
  EXPECT_EQ(texts(config, DType::kBF16, {kMoments}, 2), moments);
  EXPECT_TRUE(planned_shared(config, DType::kBF16, {}, 2).empty());
}

TEST(SharedOptions, WithFp16HaveNoMastersToDecideAbout) {
  const SmallRun run("shared_options_fp16");
  const Config config = load_config(run.config_path(), {"optimizer.first_moment=8bit"});
  const std::vector<std::string> found = {"optimizer.first_moment: fp32 bf16 *8bit",
                                          "optimizer.second_moment: *fp32 bf16_stochastic 8bit",
                                          "comm.wire_dtype: fp32 fp16 *bf16"};
  EXPECT_EQ(texts(config, DType::kF16, kAll, 4), found);
}

TEST(SharedOptions, BecomeSettingsOfAConfigurationThatTrains) {
  const SmallRun run("shared_options_config");
  const Config config = load_config(run.config_path(), {"optimizer.weight_rounding=stochastic"});
  const auto places = planned_shared(config, DType::kBF16, kAll, 2);
  const auto planned = [&](const Plan& plan) {
    const Config made = with_plan(config, DType::kBF16, places, plan);
    ops_of(made);
    return parse_config(to_yaml(made), "plan");  // written and read back
  };
  const Config exact = planned({0, 0, 0, 0}), low = planned({2, 1, 2, 1}), kahan = planned({1, 2, 1, 0});
  EXPECT_EQ(exact.optimizer.adamw.first_moment, MomentFormat::kF32);
  EXPECT_EQ(exact.optimizer.adamw.master, MasterWeights::kF32);
  EXPECT_EQ(exact.optimizer.adamw.weight_rounding, WeightRounding::kStochastic) << "as configured";
  EXPECT_EQ(exact.comm.reducer.wire, DType::kF32);
  EXPECT_EQ(low.optimizer.adamw.first_moment, MomentFormat::kBlockwise8Bit);
  EXPECT_EQ(low.optimizer.adamw.second_moment, MomentFormat::kBF16Stochastic);
  EXPECT_EQ(low.optimizer.adamw.master, MasterWeights::kNoneStochastic);
  EXPECT_EQ(low.optimizer.adamw.weight_rounding, WeightRounding::kNearest) << "there are no masters to round";
  EXPECT_EQ(low.comm.reducer.wire, DType::kBF16);
  EXPECT_EQ(kahan.optimizer.adamw.master, MasterWeights::kKahan);
}

TEST(SharedOptions, AreAsConfiguredInUniformPlansAndTheMostExactInFp32) {
  const SmallRun run("shared_options_uniform");
  const Config config = load_config(run.config_path(), {"optimizer.second_moment=8bit", "optimizer.master=kahan"});
  const auto places = planned_shared(config, DType::kBF16, kAll, 2);
  EXPECT_EQ(uniform_plan(places, DType::kBF16, "bf16"), (Plan{0, 2, 1, 1}));
  EXPECT_EQ(uniform_plan(places, DType::kBF16, "current"), (Plan{0, 2, 1, 1}));
  EXPECT_EQ(uniform_plan(places, DType::kBF16, "fp32"), (Plan{0, 0, 0, 0}));
  const auto against = references(config, DType::kBF16, places);
  ASSERT_EQ(against.size(), 2u);
  EXPECT_EQ(against[0].config.optimizer.adamw.second_moment, MomentFormat::kBlockwise8Bit);
  EXPECT_EQ(against[0].config.optimizer.adamw.master, MasterWeights::kKahan);
  EXPECT_EQ(against[1].config.optimizer.adamw.second_moment, MomentFormat::kF32) << "fp32 throughout";
  EXPECT_EQ(against[1].config.comm.reducer.wire, DType::kF32);
  EXPECT_EQ(against[1].config.precision.compute, DType::kF32);
}

TEST(SharedOptions, ThatCannotBeTriedStayAsConfigured) {
  const SmallRun run("shared_options_left");
  PlannedPlace place =
      planned_shared(load_config(run.config_path(), {"optimizer.first_moment=bf16"}), DType::kBF16, {kMoments}, 1)[0];
  leave_as_configured(place, "a reason");
  ASSERT_EQ(place.options.size(), 1u);
  EXPECT_EQ(place.options[0].name, "bf16");
  EXPECT_EQ(place.refusals, std::vector<std::string>{"optimizer.first_moment: a reason; it is as configured"});
}

TEST(SharedOptions, RefuseOtherKinds) {
  EXPECT_NO_THROW(require_kinds(kAll));
  EXPECT_THROW(require_kinds({"weights"}), ConfigError);
  EXPECT_THROW(require_kinds({kWire, kWire}), ConfigError);
}

}  // namespace
}  // namespace mantissa::testing
