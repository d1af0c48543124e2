// Warnings about settings without an effect. A run's settings with others on the command line are accepted.
#include "tools/train/ineffective_settings.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Settings = std::vector<std::string>;

const std::string kNoOp =
    " has no effect: every op of this model computes without it as it does with it (`mantissa config`)";

Settings texts_of(const Config& config, const ConfigOrigins& origins = {}, int ranks = 0,
                  ContributionPath path = ContributionPath::kExchanged) {
  Settings texts;
  for (const IneffectiveSetting& found : ineffective_settings(config, origins, ranks, path)) {
    EXPECT_TRUE(found.text.find(" has no effect: ") != std::string::npos) << found.text;
    texts.push_back(found.text);
  }
  return texts;
}

std::string warnings_of(Settings settings, int ranks = 0, ContributionPath path = ContributionPath::kExchanged) {
  settings.insert(settings.begin(), {"model.layers=3", "train.packed_weights=none"});
  return fmt::format("{}", fmt::join(texts_of(testing::minimal_config(settings), {}, ranks, path), "\n"));
}

TEST(IneffectiveSettings, SettingsThatChangeSomethingAreNotNamed) {
  EXPECT_EQ(warnings_of({}), "");
  EXPECT_EQ(warnings_of({"precision.recipe=mxfp8", "precision.pattern=attention_high"}), "");
  EXPECT_EQ(warnings_of({"precision.recipe=delayed", "precision.delayed.margin=1"}), "");
  EXPECT_EQ(warnings_of({"precision.rules=[{match: blocks.0.mlp, format: delayed}]", "precision.delayed.history=3"}),
            "");
  EXPECT_EQ(warnings_of({"precision.recipe=mxfp8",
                         "precision.rules=[{match: head, op: linear, format: mxfp8}, {role: gradient, format: low}]"}),
            "");
  EXPECT_EQ(warnings_of({"precision.rules=[{match: blocks, format: fp32}, {match: blocks.0, format: bf16}, "
                         "{match: blocks.1, op: attention, format: fp16}, {match: blocks.1, op: gelu, format: fp32}]"}),
            "");
}

TEST(DoubtfulSettings, AreNamedWithTheUsualValue) {
  const auto doubts = [](const Settings& settings) {
    return fmt::format("{}", fmt::join(doubtful_settings(testing::minimal_config(settings)), "\n"));
  };
  EXPECT_EQ(doubts({}), "");
  EXPECT_EQ(doubts({"model.context=2", "model.init_stddev=0.5", "optimizer.lr=0.5"}), "");
  EXPECT_THAT(doubts({"model.context=1"}), HasSubstr("model.context = 1: each token sees only itself"));
  EXPECT_THAT(doubts({"model.window=1"}), HasSubstr("model.window = 1: each token sees only itself"));
  EXPECT_EQ(doubts({"model.window=1", "model.window_blocks=0"}), "") << "other blocks see more";
  EXPECT_THAT(doubts({"model.init_stddev=1e30"}), HasSubstr("model.init_stddev = 1e+30: steps may overflow"));
  EXPECT_THAT(doubts({"model.init_stddev=0"}), HasSubstr("model.init_stddev = 0: weights begin alike"));
  EXPECT_THAT(doubts({"model.init_stddev=1e-40"}), HasSubstr("model.init_stddev = 1e-40: weights begin alike"));
  EXPECT_THAT(doubts({"optimizer.lr=10"}), HasSubstr("optimizer.lr = 10: steps move weights"));
}

TEST(IneffectiveSettings, SaysValueOriginAndReason) {
  ConfigOrigins origins;
  const Config config = parse_config("data: {train: a}\nprecision:\n  rules: [{op: linear, format: fp32}]\n", "a.yaml",
                                     {"precision.recipe=mxfp8"}, &origins);
  EXPECT_EQ(texts_of(config, origins),
            Settings{"precision.recipe = mxfp8 (command line: precision.recipe=mxfp8)" + kNoOp});
}

TEST(IneffectiveSettings, RecipesThatNoLayerFollows) {
  for (const char* linear : {"fp32", "low", "current"}) {
    EXPECT_EQ(
        warnings_of({"precision.recipe=mxfp8", fmt::format("precision.rules=[{{op: linear, format: {}}}]", linear)}),
        "precision.recipe = mxfp8" + kNoOp);
  }
}

TEST(IneffectiveSettings, RulesThatChangeNoOp) {
  EXPECT_EQ(warnings_of({"precision.rules=[{match: token_embedding, format: nvfp4}]"}),
            "precision.rules[0] = {match: token_embedding, format: nvfp4}" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.rules=[{match: blocks.0.mlp.up, format: mxfp8}, {op: linear, format: fp32}]"}),
            "precision.rules[0] = {match: blocks.0.mlp.up, format: mxfp8}" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.rules=[{match: blocks.0, product: fprop, format: low}]"}),
            "precision.rules[0] = {match: blocks.0, product: fprop, format: low}" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.rules=[{format: bf16}, {match: head, format: fp32}]"}),
            "precision.rules[0] = {format: bf16}" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.rules=[{match: blocks.0, format: fp32}, {match: blocks.0, format: fp32}]"}),
            "precision.rules[0] = {match: blocks.0, format: fp32}" + kNoOp)
      << "one of the two has an effect";
  EXPECT_EQ(warnings_of({"precision.rules=[{op: dropout, format: fp32}]"}),
            "precision.rules[0] = {op: dropout, format: fp32}" + kNoOp);
}

TEST(IneffectiveSettings, PatternsThatKeepNothingHigh) {
  EXPECT_EQ(warnings_of({"precision.pattern=attention_high", "precision.compute=fp32"}),
            "precision.pattern = attention_high" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.pattern=all_low"}), "precision.pattern = all_low" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.pattern_blocks=2"}),
            "precision.pattern_blocks = 2 has no effect: it belongs to precision.pattern = first_last_k_high");
}

TEST(IneffectiveSettings, DelayedScalingThatNothingUses) {
  EXPECT_EQ(warnings_of({"precision.recipe=block", "precision.delayed.margin=1"}),
            "precision.delayed has no effect: no operand has delayed scaling; give precision.recipe=delayed");
}

// Whether there is a warning about `setting` in a run with the settings `choice`.
bool is_named(const std::string& setting, const Settings& choice, int ranks = 0) {
  Settings settings = choice;
  settings.push_back(setting);
  return warnings_of(settings, ranks).find(setting.substr(0, setting.find('=')) + " = ") != std::string::npos;
}

TEST(IneffectiveSettings, SettingsOfAChoiceThatIsNotMade) {
  const std::pair<const char*, Settings> cases[] = {
      {"model.rope_base=5", {"model.position=rope"}},
      {"data.layout=u16", {"data.format=tokens"}},
      {"data.mask_fraction=0.2", {"model.name=encoder"}},
      {"data.mask_token=3", {"model.name=encoder"}},
      {"optimizer.decay_steps=7", {"optimizer.schedule=wsd"}},
      {"optimizer.clip.percentile=50", {"optimizer.clip.mode=adaptive"}},
      {"optimizer.clip.window=50", {"optimizer.clip.mode=adaptive"}},
      {"optimizer.clip.warmup=10", {"optimizer.clip.mode=adaptive"}},
      {"precision.pattern_blocks=2", {"precision.pattern=first_last_k_high", "model.layers=6"}},
      {"precision.fallback.window=9", {"precision.fallback.overflows=2"}},
      {"scaler.init_scale=4", {"precision.compute=fp16"}},
      {"scaler.init_scale=4", {"precision.compute=fp16", "scaler.mode=static"}},
      {"probe.interval=7", {"probe.enabled=true"}},
  };
  for (const auto& [setting, choice] : cases) {
    EXPECT_TRUE(is_named(setting, {})) << setting;
    EXPECT_FALSE(is_named(setting, choice)) << setting;
  }
}

TEST(IneffectiveSettings, SettingsOfThingsThatAreLeftOut) {
  const Settings unevaluated = {"train.eval_interval=0"};
  for (const char* setting : {"train.eval_batches=3", "data.validation=[b]", "data.validation_fraction=0.2"}) {
    EXPECT_FALSE(is_named(setting, {})) << setting;
    EXPECT_TRUE(is_named(setting, unevaluated)) << setting;
  }
  for (const char* setting : {"train.sample_interval=3", "train.sample_prompt=To"}) {
    EXPECT_FALSE(is_named(setting, {})) << setting;
    EXPECT_TRUE(is_named(setting, {"train.sample_tokens=0"})) << setting;
    EXPECT_TRUE(is_named(setting, {"model.name=encoder"})) << setting;
  }
  EXPECT_TRUE(is_named("train.sample_tokens=5", {"data.format=tokens"}));
  EXPECT_FALSE(is_named("train.sample_tokens=0", {"data.format=tokens"}));
  for (const char* setting : {"optimizer.sharding=replicated", "comm.wire_dtype=fp32", "comm.accumulate=wire",
                              "comm.wire_rounding=stochastic", "comm.error_feedback=true"}) {
    EXPECT_FALSE(is_named(setting, {})) << setting;
    EXPECT_FALSE(is_named(setting, {}, 2)) << setting;
    EXPECT_TRUE(is_named(setting, {}, 1)) << setting;
  }
  for (const char* setting : {"comm.wire_rounding=stochastic", "comm.error_feedback=true"}) {
    EXPECT_TRUE(is_named(setting, {"comm.wire_dtype=fp32"}, 2)) << setting;
    EXPECT_TRUE(is_named(setting, {"precision.compute=fp64"}, 2)) << setting;
    EXPECT_FALSE(is_named(setting, {"comm.wire_dtype=e5m2"}, 2)) << setting;
    EXPECT_FALSE(is_named(setting, {"comm.wire_dtype=e5m2", "train.lanes=4"}, 1)) << setting;
  }
  EXPECT_TRUE(is_named("integrity.action=warn", {"integrity.interval=0"}));
  EXPECT_FALSE(is_named("integrity.action=warn", {}));
  EXPECT_FALSE(is_named("integrity.action=warn", {"integrity.interval=0", "integrity.wire=true"}, 2));
  EXPECT_TRUE(is_named("integrity.action=warn", {"integrity.interval=0", "integrity.wire=true"}, 1));
  EXPECT_TRUE(is_named("test.random.seed=3", {}));
  EXPECT_FALSE(is_named("test.random.seed=3", {"test.random.count=1"}));
  EXPECT_TRUE(is_named("data.validation_fraction=0.2", {"data.validation=[b]"}));
  EXPECT_TRUE(is_named("optimizer.final_lr=1e-5", {"optimizer.schedule=constant"}));
  EXPECT_TRUE(is_named("optimizer.clip.max_norm=2", {"optimizer.clip.mode=none"}));
  EXPECT_TRUE(is_named("cuda.graph=true", {"device=cpu"}));
}

TEST(IneffectiveSettings, SettingsOfTheScaler) {
  const Settings fixed_scale = {"precision.compute=fp16", "scaler.mode=static"};
  for (const char* setting : {"scaler.growth_factor=3", "scaler.growth_interval=3", "scaler.backoff_factor=0.25",
                              "scaler.min_scale=4", "scaler.max_scale=1e9", "scaler.hysteresis=3"}) {
    EXPECT_FALSE(is_named(setting, {"precision.compute=fp16"})) << setting;
    EXPECT_TRUE(is_named(setting, fixed_scale)) << setting;
  }
  EXPECT_FALSE(is_named("scaler.floor=clamp", fixed_scale));
  EXPECT_TRUE(is_named("scaler.preset=deepspeed", {}));
  EXPECT_FALSE(is_named("scaler.growth_interval=3", {"scaler.preset=deepspeed", "precision.compute=fp16"}));
}

TEST(IneffectiveSettings, Fp32ProductsThatChangeSomethingAreNotNamed) {
  for (const char* products : {"tf32", "bf16x3", "bf16x6"}) {
    const std::string model = std::string("precision.fp32_products=") + products;
    EXPECT_EQ(warnings_of({"precision.compute=fp32", model}), "");
    EXPECT_EQ(warnings_of({"precision.pattern=fp32_ends_low_core", model}), "");
    EXPECT_EQ(warnings_of({fmt::format("precision.rules=[{{match: blocks.*.mlp, format: fp32}}, {{match: blocks.*.mlp, "
                                       "format: {}}}]",
                                       products)}),
              "");
  }
  EXPECT_EQ(warnings_of({"precision.compute=fp32", "precision.fp32_products=tf32",
                         "precision.rules=[{match: \"blocks.*.attention\", format: fp32}]"}),
            "");
  EXPECT_EQ(warnings_of({"precision.compute=fp32", "precision.fp32_products=tf32",
                         "precision.rules=[{role: weight, format: mxfp8}]"}),
            "")
      << "weight gradients multiply fp32 numbers";
}

TEST(IneffectiveSettings, Fp32ProductsWithoutFp32Numbers) {
  EXPECT_EQ(warnings_of({"precision.fp32_products=tf32"}), "precision.fp32_products = tf32" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.compute=fp32", "precision.recipe=current", "precision.pattern=all_low",
                         "precision.fp32_products=bf16x6"}),
            "precision.fp32_products = bf16x6" + kNoOp);
  EXPECT_EQ(
      warnings_of({"precision.compute=fp32", "precision.fp32_products=bf16x6", "precision.rules=[{format: tf32}]"}),
      "precision.fp32_products = bf16x6" + kNoOp);
  for (const char* rule : {"{match: token_embedding, format: tf32}", "{match: blocks.0, format: tf32}"}) {
    EXPECT_EQ(warnings_of({fmt::format("precision.rules=[{{match: head, format: fp32}}, {}]", rule)}),
              fmt::format("precision.rules[1] = {}{}", rule, kNoOp));
  }
}

TEST(IneffectiveSettings, ReasonsOfRulesThatLaterOnesUndo) {
  EXPECT_EQ(warnings_of({"precision.fp32_products=tf32", "precision.rules=[{match: head, format: fp32}]"}),
            "precision.fp32_products = tf32" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.rules=[{match: head, format: tf32}, {match: head, format: fp32}]"}),
            "precision.rules[0] = {match: head, format: tf32}" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.compute=fp32", "precision.pattern=attention_high",
                         "precision.rules=[{match: blocks, format: bf16}]"}),
            "precision.pattern = attention_high" + kNoOp);
  EXPECT_EQ(warnings_of({"precision.compute=fp32", "precision.fp32_products=tf32",
                         "precision.rules=[{match: head, format: tf32}]"}),
            "precision.rules[0] = {match: head, format: tf32}" + kNoOp);
}

TEST(IneffectiveSettings, FormatsOfTheStateWithoutWeightsIn16Bits) {
  for (const char* wide :
       {"precision.compute=fp32", "precision.weights=fp32", "precision.rules=[{match: \"**\", format: fp32}]"}) {
    EXPECT_EQ(warnings_of({"optimizer.master=kahan", wide}),
              "optimizer.master = kahan has no effect: all working weights are fp32");
    EXPECT_EQ(warnings_of({"optimizer.weight_rounding=stochastic", wide}),
              "optimizer.weight_rounding = stochastic has no effect: all working weights are fp32");
  }
  EXPECT_EQ(warnings_of({"optimizer.weight_rounding=stochastic", "precision.compute=fp32",
                         "precision.rules=[{match: head, format: bf16}]"}),
            "");
  EXPECT_EQ(warnings_of({"optimizer.weight_rounding=stochastic", "optimizer.master=kahan"}),
            "optimizer.weight_rounding = stochastic has no effect: optimizer.master leaves no fp32 masters to make "
            "weights from");
}

std::string warnings_of_codes(Settings settings, int ranks, ContributionPath path = ContributionPath::kExchanged) {
  settings.insert(settings.begin(), "comm.gather=fp8");
  return warnings_of(settings, ranks, path);
}

TEST(IneffectiveSettings, GatheringInCodesWhereNothingIsSent) {
  EXPECT_EQ(warnings_of_codes({"precision.recipe=delayed"}, 2), "");
  EXPECT_EQ(warnings_of_codes({"precision.recipe=delayed"}, 0), "") << "how many ranks there are is not known";
  EXPECT_THAT(warnings_of_codes({"precision.recipe=delayed"}, 1),
              AllOf(HasSubstr("comm.gather = fp8 has no effect"), HasSubstr("there is one rank")));
  EXPECT_THAT(warnings_of_codes({"precision.recipe=delayed", "optimizer.sharding=replicated"}, 2),
              AllOf(HasSubstr("comm.gather = fp8 has no effect"), HasSubstr("optimizer.sharding = replicated")));
}

TEST(IneffectiveSettings, GatheringInCodesWhereNoWeightIsRoundedSo) {
  const auto no_effect = HasSubstr("comm.gather = fp8 has no effect: no weight matrix in bf16 is rounded");
  EXPECT_THAT(warnings_of_codes({}, 2), no_effect);
  for (const char* recipe : {"current", "block", "mxfp8"}) {
    EXPECT_THAT(warnings_of_codes({std::string("precision.recipe=") + recipe}, 2), no_effect) << recipe;
  }
  for (const char* setting : {"precision.compute=fp16", "precision.compute=fp32", "precision.weights=fp32",
                              "precision.rules=[{product: dgrad, role: weight, format: delayed:e5m2}]"}) {
    EXPECT_THAT(warnings_of_codes({"precision.recipe=delayed", setting}, 2), no_effect) << setting;
  }
  EXPECT_EQ(warnings_of_codes({"precision.rules=[{match: blocks.0.mlp, format: delayed}]"}, 2), "");
}

// The table of 12000 x 64 takes more than half of the only bucket: all that rank 1 has is of it.
TEST(IneffectiveSettings, GatheringInCodesWhereNoBucketBecomesSmaller) {
  const Settings settings = {"precision.recipe=delayed", "model.vocab=12000", "model.width=64",
                             "model.layers=1",           "model.heads=1",     "model.context=8"};
  EXPECT_THAT(warnings_of_codes(settings, 2), HasSubstr("give a comm.bucket_mib below 4"));
  EXPECT_EQ(warnings_of_codes(settings, 2, ContributionPath::kInPlace), "") << "nothing is sent, and the log says so";
}

TEST(IneffectiveSettings, SettingsThatBelongToOthers) {
  EXPECT_EQ(warnings_of({"data.layout=u16"}), "data.layout = u16 has no effect: it belongs to data.format = tokens");
  EXPECT_EQ(warnings_of({"optimizer.decay_steps=5"}),
            "optimizer.decay_steps = 5 has no effect: it belongs to optimizer.schedule = wsd");
  EXPECT_EQ(warnings_of({"precision.adaptive.loss_rise=0.5"}),
            "precision.adaptive has no effect: precision.adaptive.levels is empty");
  EXPECT_EQ(warnings_of({"precision.adaptive.levels=[{compute: fp32}, {compute: bf16}]",
                         "precision.adaptive.loss_rise=0.5", "precision.adaptive.min_improvement=0.1"}),
            "precision.adaptive.min_improvement = 0.1 has no effect: precision.adaptive.stalled_evaluations = 0");
}

TEST(IneffectiveSettings, PhasesThatChangeNothing) {
  EXPECT_EQ(warnings_of({"precision.schedule=[{after_step: 9}]"}),
            "precision.schedule[0] has no effect: it sets the same precision as precision");
  EXPECT_EQ(warnings_of({"precision.schedule=[{after_step: 1000, compute: fp32}]"}),
            "precision.schedule[0] has no effect: it begins after step 1000, and train.steps = 1000: it is never "
            "reached");
  EXPECT_EQ(
      warnings_of({"precision.adaptive.levels=[{compute: fp32}, {compute: fp32}]", "precision.adaptive.loss_rise=0.5"}),
      "precision.adaptive.levels[1] has no effect: it sets the same precision as precision.adaptive.levels[0]");
}

// An effect in one phase is enough.
TEST(IneffectiveSettings, OfPhasesAreNamedWhereNoPhaseUsesThem) {
  const Settings used = {"optimizer.weight_rounding=stochastic", "precision.delayed.history=16", "comm.gather=fp8",
                         "precision.fp32_products=tf32"};
  const auto with = [&](const char* schedule) {
    Settings settings = used;
    settings.push_back(std::string("precision.schedule=") + schedule);
    return warnings_of(settings, 2);
  };
  EXPECT_EQ(with("[{after_step: 7, compute: fp32}, {after_step: 9, recipe: delayed}]"), "");
  EXPECT_THAT(with("[{after_step: 7, recipe: current}]"),
              AllOf(HasSubstr("precision.delayed has no effect"), HasSubstr("comm.gather = fp8 has no effect"),
                    HasSubstr("precision.fp32_products = tf32 has no effect"), Not(HasSubstr("weight_rounding"))));
  ConfigOrigins origins;
  const Config config =
      parse_config("data: {train: a}\nprecision: {schedule: [{after_step: 7, rules: [{match: head, format: bf16}]}]}\n",
                   "a.yaml", {}, &origins);
  EXPECT_THAT(
      texts_of(config, origins),
      ::testing::ElementsAre(HasSubstr("precision.schedule[0].rules[0] = {match: head, format: bf16} (a.yaml:2:")));
}

// ---- A run that is analysed or resumed with other settings.

// The configuration of a run that was trained with the settings `run`.
Config with_overrides(Settings run, const Settings& overrides) {
  run.insert(run.begin(), "model.layers=5");
  return parse_config(to_yaml(testing::minimal_config(run)), "run", overrides);
}

TEST(RunSettings, AnySettingMayLoseItsEffectByOthers) {
  struct Case {
    Settings run, overrides;
    const char* ineffective;
  };
  for (const Case& one : std::initializer_list<Case>{
           {{"precision.recipe=delayed", "precision.delayed.history=16"},
            {"precision.recipe=mxfp8"},
            "precision.delayed"},
           {{"precision.compute=fp32", "precision.fp32_products=tf32"},
            {"precision.compute=bf16"},
            "precision.fp32_products = tf32"},
           {{"precision.compute=fp32", "precision.rules=[{match: blocks.0.mlp, format: tf32}]"},
            {"precision.compute=bf16"},
            "precision.rules[0] = {match: blocks.0.mlp, format: tf32}"},
           {{"precision.recipe=delayed", "precision.delayed.margin=1"},
            {"precision.rules=[{op: linear, format: current}]"},
            "precision.recipe = delayed"},
           {{"precision.pattern=attention_high"}, {"precision.compute=fp32"}, "precision.pattern = attention_high"},
           {{"precision.recipe=block", "precision.pattern=all_low"},
            {"precision.recipe=none"},
            "precision.pattern = all_low"},
           {{"precision.pattern=first_last_k_high", "precision.pattern_blocks=2"},
            {"precision.pattern=attention_high"},
            "precision.pattern_blocks = 2"},
           {{"optimizer.master=kahan"}, {"precision.compute=fp32"}, "optimizer.master = kahan"},
           {{"optimizer.weight_rounding=stochastic"},
            {"precision.compute=fp32"},
            "optimizer.weight_rounding = stochastic"},
           {{"optimizer.weight_rounding=stochastic"},
            {"precision.rules=[{op: linear, format: fp32}, {match: token_embedding, "
             "format: fp32}]"},
            "optimizer.weight_rounding = stochastic"},
           {{"optimizer.weight_rounding=stochastic"},
            {"optimizer.master=kahan"},
            "optimizer.weight_rounding = stochastic"},
           {{"precision.recipe=delayed", "comm.gather=fp8"}, {"precision.weights=fp32"}, "comm.gather = fp8"},
           {{"optimizer.schedule=wsd", "optimizer.decay_steps=10"},
            {"optimizer.schedule=cosine"},
            "optimizer.decay_steps = 10"},
           {{"data.format=tokens", "data.layout=u16"}, {"data.format=bytes"}, "data.layout = u16"}}) {
    EXPECT_TRUE(ineffective_settings(with_overrides(one.run, {}), {}).empty()) << one.ineffective;
    EXPECT_THAT(texts_of(with_overrides(one.run, one.overrides)),
                ::testing::Contains(HasSubstr(std::string(one.ineffective) + " has no effect")));
  }
}

}  // namespace
}  // namespace mantissa
