#include "tools/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "amp/autocast_policy.h"
#include "amp/grad_scaler.h"
#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/tools/config/minimal.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::minimal_config;
using ::testing::Not;
using testing::TempFolder;

TEST(Config, LoadsAFileAndOverrides) {
  const TempFolder folder;
  const std::string path = folder.write(
      "gpt.yaml",
      "model: {layers: 2, width: 64, heads: 4}\ndata: {train: ['a/*.txt', b.txt]}\ncomm: {wire_dtype: fp16}\n");
  ConfigOrigins origins;
  const Config c =
      load_config(path, {"optimizer.lr=1e-2", "model.layers=3", "train.seed=18446744073709551615"}, &origins);
  EXPECT_EQ(c.model.layers, 3);
  EXPECT_EQ(c.model.width, 64);
  EXPECT_THAT(c.data.train, ElementsAre("a/*.txt", "b.txt"));
  EXPECT_EQ(c.comm.reducer.wire, DType::kF16);
  EXPECT_EQ(c.optimizer.schedule.peak, 1e-2);
  EXPECT_EQ(c.train.seed, UINT64_MAX);
  EXPECT_EQ(origins.at("model.width"), path + ":1:27");
  EXPECT_EQ(origins.at("model.layers"), "command line: model.layers=3");
  EXPECT_FALSE(origins.contains("train.steps"));
}

TEST(Config, ErrorsAreConfigErrorsWithExitCodeTwo) {
  try {
    minimal_config({"model.layer=3"});
    FAIL() << "an unknown key was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_THAT(error.what(), HasSubstr("unknown key 'layer' in section 'model'; did you mean 'layers', or does it "
                                        "belong in section 'test.activations[]'?"));
  }
  EXPECT_THAT(message_of<ConfigError>([] { minimal_config({"train.lr=3"}); }),
              HasSubstr("it belongs in section 'optimizer'"));
  EXPECT_THAT(message_of<ConfigError>([] { minimal_config({"model.n_embd=3"}); }),
              HasSubstr("here it is called model.width"));
}

TEST(Config, SynonymsNameSettingsThatExistAndAreNoneThemselves) {
  const auto settings = flatten(Config{});
  for (const auto& [word, meaning] : config_synonyms()) {
    const bool is_of_rules = word.starts_with("rules[].") && meaning == "format";
    EXPECT_TRUE(is_of_rules || settings.contains(meaning)) << word << " -> " << meaning;
    for (const auto& [path, value] : settings) {
      EXPECT_NE(path.substr(path.rfind('.') + 1), word) << path << ": the synonym is a key of its own";
    }
  }
}

TEST(Config, SaysWhoComputesAttention) {
  EXPECT_EQ(minimal_config({}).cuda.attention, AttentionChoice::kAuto);
  EXPECT_EQ(minimal_config({"cuda.attention=own"}).cuda.attention, AttentionChoice::kOwn);
  EXPECT_EQ(minimal_config({"cuda.attention=cudnn"}).cuda.attention, AttentionChoice::kCudnn);
  EXPECT_THAT(message_of<ConfigError>([] { minimal_config({"cuda.attention=flash"}); }), HasSubstr("cudnn"));
}

TEST(Config, TotalStepsOfTheScheduleFollowTrainSteps) {
  EXPECT_EQ(minimal_config({"train.steps=77"}).optimizer.schedule.total_steps, 77);
}

TEST(Config, ScalerModeFollowsThePrecision) {
  const auto mode = [](std::vector<std::string> overrides) { return minimal_config(overrides).scaler.scaler.mode; };
  EXPECT_EQ(mode({}), ScalerMode::kNone);
  EXPECT_EQ(mode({"precision.compute=fp32"}), ScalerMode::kNone);
  EXPECT_EQ(mode({"precision.compute=fp16"}), ScalerMode::kDynamic);
  EXPECT_EQ(mode({"precision.rules=[{op: linear, format: fp16}]"}), ScalerMode::kDynamic);
  EXPECT_EQ(mode({"precision.rules=[{match: blocks.0, format: fp16}]"}), ScalerMode::kDynamic);
  EXPECT_EQ(mode({"comm.wire_dtype=fp16"}), ScalerMode::kDynamic);
  EXPECT_EQ(mode({"comm.wire_dtype=fp16", "scaler.mode=none"}), ScalerMode::kNone);
  EXPECT_EQ(mode({"precision.compute=fp16", "scaler.mode=none"}), ScalerMode::kNone);
  EXPECT_EQ(mode({"precision.compute=fp16", "scaler.mode=static"}), ScalerMode::kStatic);
  EXPECT_EQ(mode({"scaler.mode=dynamic"}), ScalerMode::kDynamic);
}

// A run's config.yaml and the configuration in its checkpoints can be read again with other settings.
TEST(Config, TheScalerModeFollowsThePrecisionAfterItWasWrittenToo) {
  const Config bf16 = minimal_config(), fp16 = minimal_config({"precision.compute=fp16"});
  EXPECT_THAT(to_yaml(bf16), HasSubstr("# scaler.mode: auto is none with this precision and wire\n"));
  EXPECT_THAT(to_yaml(fp16), HasSubstr("# scaler.mode: auto is dynamic with this precision and wire\n"));
  EXPECT_EQ(parse_config(to_yaml(bf16), "run", {"precision.compute=fp16"}).scaler.scaler.mode, ScalerMode::kDynamic);
  EXPECT_EQ(parse_config(to_yaml(fp16), "run", {"precision.compute=bf16"}).scaler.scaler.mode, ScalerMode::kNone);
  const Config chosen = minimal_config({"scaler.mode=none"});
  EXPECT_THAT(to_yaml(chosen), Not(HasSubstr("# scaler.mode")));
  EXPECT_EQ(parse_config(to_yaml(chosen), "run", {"precision.compute=fp16"}).scaler.scaler.mode, ScalerMode::kNone);
}

// Older checkpoints store the resolved mode instead of `auto`.
TEST(Config, TheScalerModeIsComparedAsItIsResolved) {
  const Config bf16 = minimal_config(), fp16 = minimal_config({"precision.compute=fp16"});
  EXPECT_THAT(training_differences(minimal_config({"scaler.mode=none"}), bf16), IsEmpty());
  EXPECT_THAT(training_differences(minimal_config({"precision.compute=fp16", "scaler.mode=dynamic"}), fp16), IsEmpty());
  EXPECT_THAT(training_differences(bf16, fp16),
              ElementsAre("precision.compute: bf16 -> fp16", "scaler.mode: none -> dynamic"));
}

TEST(Config, APresetGivesValuesAndKeysWin) {
  const Config plain = minimal_config({"precision.compute=fp16", "scaler.preset=megatron"});
  const ScalerConfig megatron = scaler_preset("megatron");
  EXPECT_EQ(plain.scaler.scaler.init_scale, megatron.init_scale);
  EXPECT_EQ(plain.scaler.scaler.hysteresis, megatron.hysteresis);
  EXPECT_EQ(plain.scaler.scaler.growth_interval, megatron.growth_interval);
  EXPECT_EQ(plain.scaler.scaler.floor_policy, megatron.floor_policy);
  const Config changed =
      minimal_config({"precision.compute=fp16", "scaler.growth_interval=5", "scaler.preset=megatron"});
  EXPECT_EQ(changed.scaler.scaler.growth_interval, 5);
  EXPECT_EQ(changed.scaler.scaler.init_scale, megatron.init_scale);
  EXPECT_THAT(message_of<ConfigError>([] { minimal_config({"scaler.preset=pytorhc"}); }),
              HasSubstr("command line: scaler.preset=pytorhc: scaler.preset: "));
}

TEST(Config, PrecisionRulesReachTheAutocastPolicy) {
  const Config c =
      minimal_config({"precision.rules=[{op: gelu, format: fp32}, {match: blocks.1, format: fp16}, {match: "
                      "\"blocks.*.mlp\", op: linear, "
                      "format: fp32}]"});
  const AutocastPolicy policy(c.precision_rules());
  const auto dtype = [&](const char* layer, Op op) {
    return compute_dtype(policy.at(layer), AutocastState{}, op, DType::kBF16, DType::kBF16);
  };
  EXPECT_EQ(dtype("blocks.0.attention", Op::kLinear), DType::kBF16);
  EXPECT_EQ(dtype("blocks.0.mlp", Op::kLinear), DType::kF32);
  EXPECT_EQ(dtype("blocks.0.mlp", Op::kGelu), DType::kF32);
  EXPECT_EQ(dtype("blocks.1.mlp", Op::kLinear), DType::kF32);
  EXPECT_EQ(dtype("blocks.1.attention", Op::kAttention), DType::kF16);
  const AutocastPolicy mixed(
      minimal_config({"precision.compute=fp32", "precision.rules=[{op: linear, format: bf16}]"}).precision_rules());
  EXPECT_EQ(compute_dtype(mixed.at("head"), {}, Op::kLinear, DType::kF32, DType::kF32), DType::kBF16);
  EXPECT_EQ(compute_dtype(mixed.at("x"), {}, Op::kAttention, DType::kF32, DType::kF32), DType::kF32);
}

TEST(Config, TheResolvedConfigurationReadsBackToItself) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"precision.compute=fp16", "scaler.preset=deepspeed", "scaler.growth_interval=3"},
      {"optimizer.schedule=wsd", "optimizer.decay_steps=10", "optimizer.clip.mode=adaptive", "optimizer.beta2=0.999"},
      {"precision.rules=[{match: \"blocks.*.mlp\", op: linear, format: fp32}, {match: \"*\", format: fp16}, "
       "{product: wgrad, role: gradient, format: \"current:e4m3\"}, {op: linear, format: tf32}]"},
      {"test.faults=[{step: 3, rank: 1, parameter: blocks.0.mlp.up.weight, element: 9, kind: flip, bit: 7, "
       "target: first_moment}, {kind: kill, operation: rename, file: x, phase: checkpoint}]",
       "test.random.count=3", "test.random.kinds=[kill, nan]", "test.activations=[{layer: blocks.1, op: add}]"},
      {"train.sample_prompt=a \"b\": 'c' # d", "train.run_dir=my runs/x", "data.validation=[v.txt]"},
      {"optimizer.lr=0.00012345678901234567", "model.dropout=0.1", "comm.bucket_mib=0.3",
       "train.seed=12345678901234567890"},
  };
  for (const auto& overrides : cases) {
    const Config c = minimal_config(overrides);
    const std::string yaml = to_yaml(c);
    const Config back = parse_config(yaml, "resolved.yaml");
    EXPECT_EQ(to_yaml(back), yaml);
    EXPECT_EQ(flatten(back), flatten(c));
    EXPECT_EQ(fingerprint(back), fingerprint(c));
    EXPECT_THAT(training_differences(c, back), IsEmpty());
  }
}

TEST(Config, FingerprintsFollowWhatTheyStandFor) {
  const uint64_t base = fingerprint(minimal_config());
  EXPECT_NE(fingerprint(minimal_config({"train.run_dir=elsewhere"})), base);
  EXPECT_NE(fingerprint(minimal_config({"checkpoint.resume=none"})), base);
  EXPECT_NE(fingerprint(minimal_config({"optimizer.lr=1e-5"})), base);
  EXPECT_NE(fingerprint(minimal_config({"test.faults=[{parameter: a}]"})), base);
  const std::string model = model_fingerprint(minimal_config());
  EXPECT_EQ(model_fingerprint(minimal_config({"model.dropout=0.1", "optimizer.lr=1e-5"})), model);
  EXPECT_NE(model_fingerprint(minimal_config({"model.layers=7"})), model);
  EXPECT_NE(model_fingerprint(minimal_config({"model.activation=swiglu"})), model);
}

// The path becomes absolute: in a file from its folder, on the command line from where the process is.
TEST(Config, FindsAPluginAndKeepsItsDigest) {
  namespace fs = std::filesystem;
  const TempFolder folder;
  const std::string own = folder.write("own.so", "a plugin"), another = folder.write("other.so", "another");
  const std::string file = folder.write("configs/own.yaml", "data: {train: [a.txt]}\nmodel: {plugin: ../own.so}\n");
  const Config config = load_config(file);
  EXPECT_EQ(config.model.plugin, own);
  EXPECT_EQ(config.model.plugin_digest.size(), 16u);
  const Config other = load_config(file, {"model.plugin=" + fs::relative(another).string()});
  EXPECT_EQ(other.model.plugin, another);
  EXPECT_NE(other.model.plugin_digest, config.model.plugin_digest);

  // A run keeps both. Another file shapes the training, another place of the same file does not.
  const Config kept = parse_config(to_yaml(config), "config.yaml");
  EXPECT_EQ(to_yaml(kept), to_yaml(config));
  const std::string elsewhere = folder.write("moved/own.so", "a plugin");
  const Config moved = parse_config(to_yaml(config), "config.yaml", {"model.plugin=" + elsewhere});
  EXPECT_THAT(training_differences(config, moved), IsEmpty());
  EXPECT_THAT(training_differences(config, other), ElementsAre(HasSubstr("model.plugin_digest: ")));
  EXPECT_EQ(model_fingerprint(config), model_fingerprint(other));

  EXPECT_THAT(message_of<ConfigError>([&] { load_config(file, {"model.plugin=absent.so"}); }), HasSubstr("absent.so"));
  EXPECT_THAT(message_of<ConfigError>([] { minimal_config({"model.plugin_digest=0123456789abcdef"}); }),
              HasSubstr("model.plugin_digest belongs to model.plugin"));
}

TEST(Config, DifferencesAreThoseThatShapeTheTraining) {
  const Config a = minimal_config();
  Config loaded = a;
  loaded.train.init_from = "a/model";
  EXPECT_THAT(
      training_differences(a, minimal_config({"optimizer.lr=0.001", "train.log_interval=3", "train.eval_interval=7",
                                              "train.stop_at_step=5", "checkpoint.interval=9", "data.train=[moved.txt]",
                                              "train.micro_batch=2", "train.recompute=full", "train.measure_peak=false",
                                              "profile=true", "test.faults=[{parameter: a}]"})),
      ElementsAre("optimizer.lr: 0.0003 -> 0.001"));
  EXPECT_THAT(training_differences(a, minimal_config({"data.validation_fraction=0.2", "train.steps=50"})),
              ElementsAre("data.validation_fraction: 0.05 -> 0.2", "train.steps: 1000 -> 50"));
  EXPECT_THAT(training_differences(a, loaded), ElementsAre(HasSubstr("train.init_from: ")));
  // Without evaluation, training also uses the tail of its data.
  EXPECT_THAT(training_differences(a, minimal_config({"train.eval_interval=0"})),
              ElementsAre("train.eval_interval: 100 -> 0"));
  EXPECT_THAT(training_differences(a, minimal_config({"data.validation=[v.txt]"})),
              ElementsAre("data.validation: [] -> [v.txt]"));
  const Config named = minimal_config({"data.validation=[v.txt]"});
  EXPECT_THAT(training_differences(named, minimal_config({"data.validation=[moved.txt]", "train.eval_interval=0"})),
              IsEmpty());
  EXPECT_THAT(training_differences(a, minimal_config({"precision.rules=[{match: x, format: fp32}]"})),
              ElementsAre("precision.rules[0].format: (absent) -> fp32", "precision.rules[0].match: (absent) -> x",
                          "precision.rules[0].op: (absent) -> any", "precision.rules[0].product: (absent) -> any",
                          "precision.rules[0].role: (absent) -> any"));
}

TEST(Config, ReportingDifferencesShapeNoTraining) {
  const Config a = minimal_config();
  Config b = minimal_config({"optimizer.lr=0.001", "train.threads=3", "profile=true", "probe.enabled=true",
                             "train.eval_interval=7", "data.train=[moved.txt]"});
  const auto findings = [&](const ConfigOrigins& origins) { return reporting_differences(a, b, origins); };
  EXPECT_THAT(findings({}), ElementsAre("data.train: [a.txt] -> [moved.txt]", "probe.enabled: false -> true",
                                        "profile: false -> true", "train.eval_interval: 100 -> 7"));
  b.train.run_dir = "/elsewhere/" + a.train.run_dir;
  EXPECT_THAT(findings({}),
              ElementsAre("probe.enabled: false -> true", "profile: false -> true", "train.eval_interval: 100 -> 7"));
  EXPECT_EQ(findings({{"data.train", "command line: data.train=moved.txt"}}).size(), 4u);
}

TEST(Config, LengthRateClippingAndStopRulesSteerTheTraining) {
  for (const char* path :
       {"train.steps", "optimizer.lr", "optimizer.final_lr", "optimizer.schedule", "optimizer.warmup_steps",
        "optimizer.decay_steps", "optimizer.clip.max_norm", "optimizer.clip.mode", "stop_rules.action"}) {
    EXPECT_TRUE(steers_training(path)) << path;
  }
  for (const char* path : {"train.seed", "train.global_batch", "optimizer.beta1", "optimizer.weight_decay",
                           "model.dropout", "precision.compute", "data.mask_fraction", "scaler.init_scale"}) {
    EXPECT_FALSE(steers_training(path)) << path;
  }
  EXPECT_THAT(training_differences(minimal_config(), minimal_config({"straggler.window=20"})), IsEmpty());
  EXPECT_THAT(training_differences(minimal_config(), minimal_config({"stop_rules.action=skip"})),
              ElementsAre("stop_rules.action: warn -> skip"));
}

TEST(ConfigTest, RecipesOfLinearLayers) {
  const Config c = minimal_config(
      {"model.layers=4", "precision.recipe=delayed", "precision.pattern=first_last_k_high",
       "precision.delayed.history=16", "precision.delayed.amax=most_recent", "precision.delayed.margin=1",
       "precision.rules=[{match: blocks.1, product: wgrad, role: gradient, format: \"current:e4m3\"}]"});
  EXPECT_EQ(c.precision.delayed,
            (DelayedScalingOptions{.history = 16, .choice = AmaxChoice::kMostRecent, .margin = 1}));
  const AutocastPolicy policy(c.precision_rules());
  EXPECT_FALSE(policy.at("blocks.0.mlp.up").linear.any());
  const LinearFormats& formats = policy.at("blocks.1.mlp.up").linear;
  EXPECT_EQ(formats.at(Product::kWeightGradient, Role::kGradient), (TensorFormat{Format::kE4M3, Scaling::kCurrent}));
  EXPECT_EQ(formats.at(Product::kInputGradient, Role::kGradient), (TensorFormat{Format::kE5M2, Scaling::kDelayed}));
  EXPECT_EQ(flatten(parse_config(to_yaml(c), "printed")), flatten(c));
  const Config wide = minimal_config({"precision.compute=fp32", "precision.recipe=block"});
  EXPECT_TRUE(linear_formats(AutocastPolicy(wide.precision_rules()).at("blocks.1.mlp.up"), {}).any());
}

}  // namespace
}  // namespace mantissa
