#include "tools/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tests/core/io/temp_folder.h"
#include "tests/tools/config/minimal.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::minimal_config;

std::string error_of(std::vector<std::string> overrides) {
  return message_of<ConfigError>([&] { minimal_config(overrides); });
}

TEST(Validation, DefaultsAreValid) { EXPECT_EQ(error_of({}), "(nothing was thrown)"); }

TEST(Validation, NamesKeysValuesAndWhereTheyWereWritten) {
  const std::string message = message_of<ConfigError>(
      [] { parse_config("model:\n  heads: 7\ndata: {train: a}\n", "gpt.yaml", {"model.width=64"}); });
  EXPECT_EQ(message,
            "model.heads = 7 (gpt.yaml:2:10) must divide model.width = 64 (command line: model.width=64): every head "
            "gets an equal part of the width, unless model.head_dim is given");
  EXPECT_THAT(error_of({"model.heads=7"}), HasSubstr("model.width = 384 (default)"));
}

struct Case {
  std::vector<std::string> overrides;
  const char* message;
};

class Impossible : public ::testing::TestWithParam<Case> {};

TEST_P(Impossible, IsRefused) { EXPECT_THAT(error_of(GetParam().overrides), HasSubstr(GetParam().message)); }

INSTANTIATE_TEST_SUITE_P(
    Combinations, Impossible,
    ::testing::Values(
        Case{{"model.kv_heads=4"},
             "model.kv_heads = 4 (command line: model.kv_heads=4) must divide model.heads = 6 (default)"},
        Case{{"model.position=rope", "model.width=30"},
             "30 (command line: model.width=30) / model.heads = 6 (default) = 5 is odd"},
        Case{{"data.train=[]"}, "name the training files"},
        Case{{"data.train="}, "data.train = [\"\"] (command line: data.train=): a name is empty; name files"},
        Case{{"data.validation=[\"\"]"}, ": a name is empty"},
        Case{{"data.mask_token=256"}, "is outside of the vocabulary of model.vocab = 256"},
        Case{{"data.validation_fraction=0"}, "there is no validation data"},
        Case{
            {"train.global_batch=10"},
            "train.global_batch = 10 (command line: train.global_batch=10) is not a multiple of train.micro_batch = 4"},
        Case{{"train.stop_at_step=1001"},
             "train.stop_at_step = 1001 (command line: train.stop_at_step=1001) comes after train.steps = 1000"},
        Case{{"train.recompute=all"}, "none, selective, full"},
        Case{{"train.run_dir="}, "name the folder for the run's results"},
        Case{{"train.run_dir=~/runs"}, "'~/runs' is taken literally, since no shell has expanded it"},
        Case{{"checkpoint.resume=$HOME/run"}, "'$HOME/run' is taken literally"},
        Case{{"data.train=[a.txt, \"${DATA}/b.txt\"]"}, "'${DATA}/b.txt' is taken literally"},
        Case{{"train.sample_tokens=1000000000000"}, "train.sample_tokens: expected an integer in [0, 1048576]"},
        Case{{"checkpoint.resume="}, "expected auto, none, or a checkpoint or run folder"},
        Case{{"train.sample_prompt="},
             "train.sample_prompt = \"\" (command line: train.sample_prompt=) leaves train.sample_tokens = 200 "
             "(default) "
             "nothing to continue"},
        Case{
            {"train.sample_prompt=az", "model.vocab=122"},
            "train.sample_prompt = az (command line: train.sample_prompt=az) holds byte 122, outside of the vocabulary "
            "of model.vocab = 122 (command line: model.vocab=122)"},
        Case{{"train.sample_prompt=\xc3\xa9", "model.vocab=128"}, "holds byte 195, outside of the vocabulary"},
        Case{{"train.steps=4294967296"}, "an integer in [1, 4294967295]"},
        Case{{"train.stop_at_step=4294967296"}, "an integer in [0, 4294967295]"},
        Case{{"train.eval_batches=1048577"}, "an integer in [1, 1048576]"},
        Case{{"train.global_batch=1073741828"}, "an integer in [1, 1073741824]"},
        Case{{"optimizer.schedule=wsd", "optimizer.decay_steps=9223372036854775807"}, "an integer in [0, 4294967295]"},
        Case{{"optimizer.warmup_steps=9223372036854775807"}, "an integer in [0, 4294967295]"},
        Case{{"comm.bucket_mib=0.0009"}, "a number in [0.0009765625, 65536]"},
        Case{{"optimizer.final_lr=1"}, "is above optimizer.lr = 0.0003"},
        Case{{"optimizer.warmup_steps=1001"}, "is more than train.steps = 1000"},
        Case{{"optimizer.schedule=wsd"}, "needs optimizer.decay_steps > 0"},
        Case{{"optimizer.schedule=wsd", "optimizer.decay_steps=600", "optimizer.warmup_steps=500"},
             "together are more than train.steps"},
        Case{{"optimizer.clip.max_norm=0"}, "would make every gradient zero"},
        Case{{"optimizer.weight_rounding=up"}, "nearest, stochastic"},
        Case{
            {"optimizer.second_moment=bf16"},
            "optimizer.second_moment = bf16 (command line: optimizer.second_moment=bf16): a second moment in bf16 that "
            "is rounded to nearest never decays at beta2 = 0.999"},
        Case{{"optimizer.first_moment=bf16_stochastic"}, "fp32, bf16, 8bit"},
        Case{{"optimizer.master=none"}, "fp32, none_stochastic, kahan"},
        Case{{"optimizer.master=kahan", "precision.compute=fp16"},
             "optimizer.master = kahan (command line: optimizer.master=kahan) updates working weights in bf16, and "
             "precision.compute = fp16"},
        Case{{"optimizer.clip.mode=adaptive", "optimizer.clip.warmup=101"}, "is more than optimizer.clip.window = 100"},
        Case{{"precision.rules=[{match: \"a..b\", format: fp32}]"}, "precision.rules[0] (command line: "},
        Case{{"precision.rules=[{match: a, format: widest}]"}, "this format needs an op"},
        Case{{"precision.recipe=fp8"}, "expected one of none, delayed, current, block, mxfp8, nvfp4"},
        Case{{"precision.recipe=nvfp4:e4m3"}, "expected one of none, delayed, current, block, mxfp8, nvfp4"},
        Case{{"precision.rules=[{match: a, op: gelu, format: mxfp8}]"}, "only linear layers have this format"},
        Case{{"precision.rules=[{match: a, role: weight, format: bf16}]"}, "an operand has a recipe, or low"},
        Case{{"precision.pattern=first_last_k_high", "precision.pattern_blocks=50"}, "leaves none of the model's"},
        Case{{"precision.rules=[{match: a}]"},
             "precision.rules[0] (command line: precision.rules=[{match: a}]): [precision] rule {match: a}: expected a "
             "format, one of fp32, bf16"},
        Case{{"precision.rules=[{match: a, format: fp31}]"}, "precision.rules[0].format: expected one of fp32, bf16"},
        Case{{"precision.rules=[{match: a, op: gelu, format: tf32}]"}, "only linear layers have this format"},
        Case{{"precision.rules=[{match: a, role: weight, format: tf32}]"}, "an operand has a recipe, or low"},
        Case{{"precision.compute=bf16x6"}, "set precision.compute=fp32 and precision.fp32_products=bf16x6"},
        Case{{"precision.compute=mxfp8"},
             "precision.compute: 'mxfp8' is a format of matrix products: set precision.recipe=mxfp8"},
        Case{{"precision.compute=fp8"}, "by precision.recipe, one of delayed, current, block, mxfp8, nvfp4"},
        Case{{"compute=fp8_e4m3"}, "compute: 'fp8_e4m3' is too narrow to compute in: matrix products round"},
        Case{{"precision.recipe=bf16"}, "'bf16' is a format to compute in: set precision.compute=bf16"},
        Case{{"precision.recipe=tf32"}, "precision.recipe: 'tf32' is a way to multiply fp32 numbers"},
        Case{{"precision.schedule=[{after_step: 5, compute: tf32}]"},
             "set precision.schedule[0].compute=fp32 and precision.schedule[0].fp32_products=tf32"},
        Case{{"precision.adaptive.levels=[{compute: fp32}, {recipe: tf32}]"},
             "precision.adaptive.levels[1].recipe: 'tf32' is a way to multiply fp32 numbers"},
        Case{{"precision.rules=[{match: a, compute: tf32}]"}, "here it is called format"},
        Case{{"precision.fp32_products=bf16x9"}, "expected one of fp32, tf32, bf16x3, bf16x6"},
        Case{{"precision.tf32=true"},
             "unknown key 'tf32' in section 'precision'; here it is called "
             "precision.fp32_products"},
        Case{{"precision.compute=fp64", "precision.recipe=mxfp8"},
             "precision.recipe = mxfp8 (command line: precision.recipe=mxfp8) is about rounding, and with "
             "precision.compute = fp64 (command line: precision.compute=fp64) nothing is rounded; give "
             "precision.recipe=none"},
        Case{{"precision.compute=fp64", "precision.rules=[{match: head, format: fp32}]"}, "of all; remove them"},
        Case{{"precision.rules=[{match: head, format: fp64}]"},
             "fp64 is for whole models; give precision.compute=fp64"},
        Case{{"precision.compute=fp64", "precision.pattern=attention_high"}, "give precision.pattern=none"},
        Case{{"precision.compute=fp64", "precision.fp32_products=tf32"}, "give precision.fp32_products=fp32"},
        Case{{"precision.compute=fp64", "optimizer.first_moment=bf16"}, "give optimizer.first_moment=fp32"},
        Case{{"precision.compute=fp64", "optimizer.second_moment=8bit"}, "give optimizer.second_moment=fp32"},
        Case{{"precision.compute=fp64", "optimizer.master=kahan"}, "give optimizer.master=fp32"},
        Case{{"precision.compute=fp64", "optimizer.weight_rounding=stochastic"}, "optimizer.weight_rounding=nearest"},
        Case{{"precision.compute=fp64", "comm.gather=fp8"}, "give comm.gather=working"},
        Case{{"precision.compute=fp64", "precision.fallback.overflows=2"}, "give precision.fallback.overflows=0"},
        Case{{"precision.compute=fp64", "probe.enabled=true"}, "give probe.enabled=false"},
        Case{{"precision.compute=fp64", "precision.schedule=[{after_step: 5, compute: fp32}]"},
             "compute = fp64 holds for a whole training"},
        Case{{"precision.schedule=[{after_step: 5, compute: fp64}]"}, "compute = fp64 holds for a whole training"},
        Case{{"comm.wire_dtype=fp64"}, "comm.wire_dtype: expected one of fp32, bf16, fp16, e4m3, e5m2"},
        Case{{"comm.wire_dtype=e4m3", "comm.accumulate=wire"},
             "means codes with block scales, whose sums are fp32; give comm.accumulate=fp32"},
        Case{{"scaler.mode=static", "scaler.init_scale=0.5"}, "is below scaler.min_scale = 1.0"},
        Case{{"scaler.mode=dynamic", "scaler.max_scale=100"},
             "scaler.init_scale = 65536.0 (default) is above scaler.max_scale"},
        Case{{"test.faults=[{step: 0, parameter: a}]"}, "test.faults[0].step: expected an integer >= 1, got '0'"},
        Case{{"test.activations=[{step: 0, layer: a}]"}, "test.activations[0].step: expected an integer >= 1, got '0'"},
        Case{{"test.faults=[{step: 1}]"}, "test.faults[0].parameter = \"\" (default; command line: "},
        Case{{"test.faults=[{parameter: a, step: 1001}]"}, "is never reached: the run ends after step 1000"},
        Case{{"test.faults=[{kind: explode}]"}, "test.faults[0].kind: expected one of inf, nan, flip, sleep"},
        Case{{"test.faults=[{kind: sleep, phase: lunch}]"}, "test.faults[0].phase: expected one of none, data"},
        Case{{"test.faults=[{parameter: a, phase: data}]"}, "does not go with a change of a value"},
        Case{{"test.faults=[{kind: no_space, operation: sync}]"}, "goes with the kinds sleep, stop, kill and exit"},
        Case{{"test.faults=[{kind: flip, parameter: a, bit: 32}]"}, "test.faults[0].bit: expected an integer in [0"},
        Case{{"test.faults=[{parameter: a, bit: 3}]"}, "test.faults[0].bit = 3 (command line: "},
        Case{{"test.faults=[{kind: nan, parameter: a, bit: 3}]"}, "goes with the kind flip only; leave it out"},
        Case{{"test.faults=[{kind: kill, seconds: 2}]"}, "goes with the kind sleep only; leave it out"},
        Case{{"test.faults=[{kind: sleep, operation: sync, steps: 2}]"}, "the kind sleep without an operation only"},
        Case{{"test.faults=[{kind: kill, code: 2}]"}, "goes with the kind exit only; leave it out"},
        Case{{"test.faults=[{kind: stop, file: a}]"}, "goes with faults of files or with an operation only"},
        Case{{"test.faults=[{kind: exit, element: 1}]"}, "goes with the kinds inf, nan and flip only"},
        Case{{"test.faults=[{kind: exit, target: wire}]"}, "goes with the kinds inf, nan and flip only"},
        Case{{"test.faults=[{kind: exit, parameter: a}]"}, "goes with the kinds inf, nan and flip only"},
        Case{{"test.random.kinds=[flip, flop]"}, "'flop' is not a kind of fault"},
        Case{{"test.random.count=1", "test.random.kinds=[]"}, "names none"},
        Case{{"test.activations=[{step: 1}]"}, "test.activations[0].layer = \"\" (default; command line: "}));

TEST(Validation, LargestNumbersFit) {
  const Config c =
      minimal_config({"train.steps=4294967295", "train.eval_batches=1048576", "train.global_batch=1073741824",
                      "optimizer.warmup_steps=4294967295", "comm.bucket_mib=0.0009765625"});
  EXPECT_LT(c.train.steps, int64_t{1} << 32) << "steps are 32-bit counters of the random generator";
  EXPECT_LT(c.train.steps, INT64_MAX / c.train.global_batch);
  EXPECT_LT(c.train.eval_batches, INT64_MAX / c.train.global_batch);
  EXPECT_EQ(c.comm.bucket_bytes(true), 1024);
  EXPECT_EQ(CommConfig().bucket_bytes(true), 4 << 20);
  EXPECT_EQ(CommConfig().bucket_bytes(false), 64 << 20);
}

TEST(Validation, StochasticRoundingTakesTheSeedOfTheRun) {
  const Config c = minimal_config({"optimizer.weight_rounding=stochastic", "train.seed=77"});
  EXPECT_EQ(c.optimizer.adamw.weight_rounding, WeightRounding::kStochastic);
  EXPECT_EQ(c.optimizer.adamw.seed, 77u);
  EXPECT_EQ(minimal_config().optimizer.adamw.weight_rounding, WeightRounding::kNearest);
}

TEST(Validation, FormatsOfTheStateAreRead) {
  const AdamWOptions adamw = minimal_config({"optimizer.first_moment=8bit", "optimizer.second_moment=bf16_stochastic",
                                             "optimizer.master=kahan"})
                                 .optimizer.adamw;
  EXPECT_EQ(adamw.first_moment, MomentFormat::kBlockwise8Bit);
  EXPECT_EQ(adamw.second_moment, MomentFormat::kBF16Stochastic);
  EXPECT_EQ(adamw.master, MasterWeights::kKahan);
}

// ---- Settings that have become constants.

TEST(Validation, SettingsThatAreConstantsNowAreRefusedWithTheirValue) {
  EXPECT_THAT(
      error_of({"straggler.factor=1.4"}),
      HasSubstr("command line: straggler.factor=1.4: straggler.factor is no setting any more, and is 1.3; remove "
                "it: straggler.window turns the comparison off"));
  EXPECT_THAT(error_of({"precision.adaptive.band=0.25"}), HasSubstr("precision.adaptive.band is no setting any more"));
  EXPECT_THAT(error_of({"scaler.preset=deepspeed", "scaler.growth_delay=0"}),
              HasSubstr("scaler.growth_delay is no setting any more, and is 1; remove it: scaler.preset sets it"));
  EXPECT_THAT(error_of({"scaler.growth_delay=3", "stop_rules.window=64"}),
              AllOf(HasSubstr("scaler.growth_delay is no setting"), HasSubstr("stop_rules.window is no setting")));
  EXPECT_THAT(error_of({"precision.schedule=[{after_step: 3, layers: []}]"}),
              HasSubstr("precision.schedule[].layers is no setting any more: write rules"));
  // A file that an earlier version printed has all settings with their defaults.
  EXPECT_EQ(error_of({"straggler.factor=1.30", "stop_rules.max_rollbacks=3", "scaler.refill=growth"}),
            "(nothing was thrown)");
}

// A configuration that an earlier version wrote has all of its settings.
TEST(Validation, CheckpointsMayHoldConstants) {
  const auto parsed = [](const char* text) {
    return parse_config(std::string("data: {train: [a.txt]}\n") + text, "kept");
  };
  EXPECT_EQ(flatten(parsed("straggler: {window: 50, factor: 1.3}\nstop_rules: {window: 128, max_rollbacks: 3}\n"
                           "scaler: {growth_delay: 0, refill: growth}\n")),
            flatten(parsed("")));
  EXPECT_EQ(parsed("scaler: {preset: deepspeed, growth_delay: 1, refill: growth}\n").scaler.scaler.growth_delay, 1);
  EXPECT_EQ(parsed("scaler: {preset: deepspeed_consecutive, refill: clean_step}\n").scaler.scaler.refill,
            HysteresisRefill::kOnCleanStep);
  // Settings that its own constants allowed are moved to the bounds of the present ones.
  const Config bounded = parsed(
      "precision: {adaptive: {levels: [{}, {compute: bf16}], window: 300, warmup: 150, curvature: 3, "
      "curvature_interval: 7, stable_steps: 30}}\n");
  EXPECT_EQ(bounded.precision_adaptive.options.warmup, 100);
  EXPECT_EQ(bounded.precision_adaptive.options.stable_steps, 50);
  // Another value is gone, with one warning: nobody can edit a manifest.
  const int64_t before = logged_warnings();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(parsed("straggler: {factor: 2.0}\n").straggler.factor, 1.3);
    EXPECT_EQ(parsed("scaler: {preset: deepspeed, growth_delay: 0}\n").scaler.scaler.growth_delay, 1);
  }
  EXPECT_EQ(logged_warnings(), before + 2);
}

TEST(Validation, NamesOfOtherProgramsAreAnswered) {
  EXPECT_THAT(error_of({"precision.tf32=true"}), HasSubstr("here it is called precision.fp32_products"));
  for (const char* rules :
       {"rules=[{match: head, dtype: fp32}]", "schedule=[{after_step: 3, rules: [{compute: fp32}]}]"}) {
    EXPECT_THAT(error_of({std::string("precision.") + rules}), HasSubstr("here it is called format")) << rules;
  }
}

TEST(Validation, Fp32ProductsAreReadForTheModelAndForLayers) {
  const PrecisionConfig c = minimal_config({"precision.fp32_products=bf16x3",
                                            "precision.rules=[{match: a, format: tf32}, {match: b, format: fp32}]"})
                                .precision;
  EXPECT_EQ(c.fp32_products, Fp32Products::kBf16x3);
  EXPECT_EQ(c.rules[0].format, RuleFormat(Fp32Products::kTf32));
  EXPECT_EQ(c.rules[1].format, RuleFormat(DType::kF32));
}

// A setting that others make ineffective is no error here: see tests/tools/train/ineffective_settings_test.cc.
TEST(Validation, SettingsWithoutAnEffectAreAccepted) {
  for (const std::vector<std::string>& settings : std::initializer_list<std::vector<std::string>>{
           {"data.layout=u16"},
           {"optimizer.decay_steps=5"},
           {"optimizer.weight_rounding=stochastic", "precision.weights=fp32"},
           {"optimizer.weight_rounding=stochastic", "precision.compute=fp32"},
           {"optimizer.master=kahan", "precision.weights=fp32"},
           {"optimizer.master=kahan", "precision.weights=fp32", "precision.compute=fp16"},
           {"optimizer.master=none_stochastic", "precision.compute=fp32"},
           {"optimizer.master=none_stochastic", "optimizer.weight_rounding=stochastic"},
           {"comm.gather=fp8", "optimizer.sharding=replicated"},
           {"precision.pattern_blocks=2"},
           {"precision.pattern=all_low"},
           {"precision.pattern=attention_high", "precision.compute=fp32"},
           {"precision.adaptive.loss_rise=0.5"},
           {"precision.schedule=[{after_step: 9}]"}}) {
    EXPECT_EQ(error_of(settings), "(nothing was thrown)") << settings.front();
  }
}

TEST(Validation, ThePromptMattersOnlyWhereItIsUsed) {
  for (const char* unused : {"train.sample_tokens=0", "data.format=tokens", "model.name=encoder"}) {
    EXPECT_NO_THROW(minimal_config({unused, "train.sample_prompt="})) << unused;
    EXPECT_NO_THROW(minimal_config({unused, "train.sample_prompt=z", "model.vocab=100"})) << unused;
  }
  EXPECT_NO_THROW(minimal_config({"train.sample_prompt=z", "model.vocab=123"}));
}

TEST(Validation, ListsAllProblems) {
  const std::string message = error_of({"model.heads=7", "train.global_batch=10", "data.train=[]"});
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
}

TEST(Validation, BatchMustDivideAmongTheRanks) {
  ConfigOrigins origins;
  const Config c =
      parse_config("data: {train: a}\n", "a.yaml", {"train.global_batch=12", "train.micro_batch=2"}, &origins);
  for (const int ranks : {1, 2, 3, 6}) EXPECT_NO_THROW(validate_for_ranks(c, ranks)) << ranks;
  EXPECT_THAT(message_of<ConfigError>([&] { validate_for_ranks(c, 4, origins); }),
              HasSubstr("train.global_batch = 12 (command line: train.global_batch=12) is not a multiple of ranks × "
                        "micro-batch = 4 × 2 = 8"));
  EXPECT_THAT(message_of<ConfigError>([&] { validate_for_ranks(c, 4); }),
              HasSubstr("train.global_batch = 12 is not a multiple"));
}

// Steps count from 1, so a fault in step 0 would never occur.
TEST(Validation, InjectedFaultsAreInTheFirstStepUnlessTheySayOtherwise) {
  const Config c = minimal_config({"test.faults=[{parameter: a}]", "test.activations=[{layer: a}]"});
  EXPECT_EQ(c.test.faults[0].step, 1);
  EXPECT_EQ(c.test.activations[0].step, 1);
}

TEST(Validation, InjectedFaultsNameRanksThatExist) {
  const Config c = minimal_config({"test.faults=[{rank: 1, parameter: a}]", "test.activations=[{rank: 2, layer: a}]"});
  const std::string message = message_of<ConfigError>([&] { validate_for_ranks(c, 1); });
  EXPECT_THAT(message, HasSubstr("test.faults[0].rank = 1"));
  EXPECT_THAT(message, HasSubstr("test.activations[0].rank = 2"));
  EXPECT_THAT(message, HasSubstr("but the job has 1 rank"));
}

}  // namespace
}  // namespace mantissa
