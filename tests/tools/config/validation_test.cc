#include "tools/config/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/tools/config/minimal.h"

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
            "gets an equal "
            "part of the width");
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
        Case{{"data.layout=u16"},
             "data.layout = u16 (command line: data.layout=u16) has no meaning with data.format = bytes"},
        Case{{"data.mask_token=256"}, "is outside of the vocabulary of model.vocab = 256"},
        Case{{"data.validation_fraction=0"}, "there is no validation data"},
        Case{
            {"train.global_batch=10"},
            "train.global_batch = 10 (command line: train.global_batch=10) is not a multiple of train.micro_batch = 4"},
        Case{{"train.stop_at_step=1001"},
             "train.stop_at_step = 1001 (command line: train.stop_at_step=1001) comes after train.steps = 1000"},
        Case{{"train.recompute=all"}, "none, selective, full"},
        Case{{"train.run_dir="}, "name the folder for the run's results"},
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
        Case{{"optimizer.decay_steps=5"}, "has no meaning with optimizer.schedule = cosine"},
        Case{{"optimizer.schedule=wsd", "optimizer.decay_steps=600", "optimizer.warmup_steps=500"},
             "together are more than train.steps"},
        Case{{"optimizer.clip.max_norm=0"}, "would make every gradient zero"},
        Case{{"optimizer.weight_rounding=up"}, "nearest, stochastic"},
        Case{{"optimizer.weight_rounding=stochastic", "precision.weights=fp32"},
             "optimizer.weight_rounding = stochastic (command line: optimizer.weight_rounding=stochastic) has no "
             "meaning with precision.weights = fp32"},
        Case{{"optimizer.weight_rounding=stochastic", "precision.compute=fp32"},
             "has no meaning with precision.compute = fp32"},
        Case{
            {"optimizer.second_moment=bf16"},
            "optimizer.second_moment = bf16 (command line: optimizer.second_moment=bf16): a second moment in bf16 that "
            "is rounded to nearest never decays at beta2 = 0.999"},
        Case{{"optimizer.first_moment=bf16_stochastic"}, "fp32, bf16, 8bit"},
        Case{{"optimizer.master=none"}, "fp32, none_stochastic, kahan"},
        Case{{"optimizer.master=kahan", "precision.weights=fp32"},
             "optimizer.master = kahan (command line: optimizer.master=kahan) has no meaning with precision.weights"},
        Case{{"optimizer.master=none_stochastic", "precision.compute=fp32"}, "has no meaning with precision.compute"},
        Case{{"optimizer.master=kahan", "precision.compute=fp16"},
             "is about working weights in bf16, and precision.compute = fp16"},
        Case{{"optimizer.master=none_stochastic", "optimizer.weight_rounding=stochastic"},
             "says how weights are made of fp32 masters, and with optimizer.master = none_stochastic"},
        Case{{"optimizer.clip.mode=adaptive", "optimizer.clip.warmup=101"}, "is more than optimizer.clip.window = 100"},
        Case{{"precision.layers=[{match: \"a..b\", dtype: fp32}]"}, "precision.layers[0].match = a..b (command line: "},
        Case{{"precision.layers=[{match: a, dtype: widest}]"}, "names no op, so it sets the layer's low precision"},
        Case{{"precision.recipe=fp8"}, "expected one of none, delayed, current, block, mxfp8, nvfp4"},
        Case{{"precision.recipe=nvfp4:e4m3"}, "expected one of none, delayed, current, block, mxfp8, nvfp4"},
        Case{{"precision.layers=[{match: a, op: gelu, dtype: mxfp8}]"}, "only linear layers round their operands"},
        Case{{"precision.layers=[{match: a, role: weight, dtype: bf16}]"}, "expected a recipe, or low"},
        Case{{"precision.pattern_blocks=2"},
             "precision.pattern_blocks = 2 (command line: precision.pattern_blocks=2) has no meaning with "
             "precision.pattern = none"},
        Case{{"precision.pattern=first_last_k_high", "precision.pattern_blocks=50"}, "leave none of the model's"},
        Case{{"precision.layers=[{match: a}]"},
             "precision.layers[0].dtype = auto (default; command line: precision.layers=[{match: a}]) and "
             "precision.layers[0].fp32_products = auto (default; command line: precision.layers=[{match: a}]): the "
             "override says nothing"},
        Case{{"precision.layers=[{match: a, op: gelu, fp32_products: tf32}]"}, "sets fp32_products of gelu"},
        Case{{"precision.layers=[{match: a, role: weight, dtype: mxfp8, fp32_products: tf32}]"},
             "sets fp32_products of single products or roles"},
        Case{{"precision.fp32_products=bf16x9"}, "expected one of fp32, tf32, bf16x3, bf16x6"},
        Case{{"precision.tf32=true"},
             "unknown key 'tf32' in section 'precision'; here it is called "
             "precision.fp32_products"},
        Case{{"scaler.mode=static", "scaler.init_scale=0.5"}, "is below scaler.min_scale = 1.0"},
        Case{{"scaler.mode=dynamic", "scaler.max_scale=100"},
             "scaler.init_scale = 65536.0 (default) is above scaler.max_scale"},
        Case{{"test.gradients=[{step: 0, parameter: a}]"}, "test.gradients[0].step: expected an integer >= 1, got '0'"},
        Case{{"test.activations=[{step: 0, layer: a}]"}, "test.activations[0].step: expected an integer >= 1, got '0'"},
        Case{{"test.gradients=[{step: 1}]"}, "test.gradients[0].parameter = \"\" (default; command line: "},
        Case{{"test.activations=[{step: 1}]"}, "test.activations[0].layer = \"\" (default; command line: "}));

TEST(Validation, LargestNumbersFit) {
  const Config c =
      minimal_config({"train.steps=4294967295", "train.eval_batches=1048576", "train.global_batch=1073741824",
                      "optimizer.warmup_steps=4294967295", "comm.bucket_mib=0.0009765625"});
  EXPECT_LT(c.train.steps, int64_t{1} << 32) << "steps are 32-bit counters of the random generator";
  EXPECT_LT(c.train.steps, INT64_MAX / c.train.global_batch);
  EXPECT_LT(c.train.eval_batches, INT64_MAX / c.train.global_batch);
  EXPECT_EQ(c.comm.bucket_bytes(), 1024);
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

// Checkpoints hold the name that the setting had when they were written.
TEST(Validation, TheFirstMomentIsReadUnderItsOldName) {
  EXPECT_EQ(minimal_config({"optimizer.moment_dtype=bf16"}).optimizer.adamw.first_moment, MomentFormat::kBF16);
  EXPECT_THAT(error_of({"optimizer.moment_dtype=bf16", "optimizer.first_moment=fp32"}),
              HasSubstr("unknown key 'moment_dtype'"));
}

// Likewise, but people are told the new name.
TEST(Validation, CheckpointsMaySayTf32) {
  const auto kept = [](const char* precision) {
    return parse_config(std::string("data:\n  train: [a.txt]\nprecision:\n  ") + precision, "kept").precision;
  };
  EXPECT_EQ(kept("tf32: true\n").fp32_products, Fp32Products::kTf32);
  EXPECT_EQ(kept("tf32: false\n").fp32_products, Fp32Products::kFp32);
  EXPECT_THAT(error_of({"precision.tf32=true"}), HasSubstr("here it is called precision.fp32_products"));
  const testing::TempFolder folder;
  std::ofstream(folder.file("a.yaml")) << "data:\n  train: [a.txt]\nprecision:\n  tf32: true\n";
  EXPECT_THAT(testing::message_of<ConfigError>([&] { load_config(folder.file("a.yaml")); }),
              HasSubstr("a.yaml:4:3: unknown key 'tf32' in section 'precision'; here it is called "
                        "precision.fp32_products"));
}

TEST(Validation, Fp32ProductsAreReadForTheModelAndForLayers) {
  const PrecisionConfig c =
      minimal_config({"precision.fp32_products=bf16x3",
                      "precision.layers=[{match: a, fp32_products: tf32}, {match: b, dtype: fp32}]"})
          .precision;
  EXPECT_EQ(c.fp32_products, Fp32Products::kBf16x3);
  EXPECT_EQ(c.layers[0].fp32_products, Fp32Products::kTf32);
  EXPECT_FALSE(c.layers[0].setting);
  EXPECT_FALSE(c.layers[1].fp32_products);
}

// Where overrides let some layers compute in 16 bits, it has a meaning.
TEST(Validation, StochasticRoundingWithOverridesIsLeftToTheModel) {
  EXPECT_NO_THROW(minimal_config({"optimizer.weight_rounding=stochastic", "precision.compute=fp32",
                                  "precision.layers=[{match: head, dtype: bf16}]"}));
  EXPECT_NO_THROW(
      minimal_config({"optimizer.weight_rounding=stochastic", "precision.compute=fp32", "precision.ops.linear=bf16"}));
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
  const Config c = minimal_config({"train.global_batch=12", "train.micro_batch=2"});
  for (const int ranks : {1, 2, 3, 6}) EXPECT_NO_THROW(validate_for_ranks(c, ranks)) << ranks;
  EXPECT_THAT(message_of<ConfigError>([&] { validate_for_ranks(c, 4); }),
              HasSubstr("train.global_batch = 12 (command line: train.global_batch=12) is not a multiple of ranks × "
                        "micro-batch = 4 × 2 = 8"));
}

// Steps count from 1: a fault in step 0 would never come.
TEST(Validation, InjectedFaultsAreInTheFirstStepUnlessTheySayOtherwise) {
  const Config c = minimal_config({"test.gradients=[{parameter: a}]", "test.activations=[{layer: a}]"});
  EXPECT_EQ(c.test.gradients[0].step, 1);
  EXPECT_EQ(c.test.activations[0].step, 1);
}

TEST(Validation, InjectedFaultsNameRanksThatExist) {
  const Config c =
      minimal_config({"test.gradients=[{rank: 1, parameter: a}]", "test.activations=[{rank: 2, layer: a}]"});
  const std::string message = message_of<ConfigError>([&] { validate_for_ranks(c, 1); });
  EXPECT_THAT(message, HasSubstr("test.gradients[0].rank = 1"));
  EXPECT_THAT(message, HasSubstr("test.activations[0].rank = 2"));
  EXPECT_THAT(message, HasSubstr("but there are 1 ranks"));
}

}  // namespace
}  // namespace mantissa
