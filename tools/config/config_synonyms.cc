// Names that users of other programs try: messages about unknown keys give ours, or say what is not available.
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

struct Unavailable {
  std::vector<std::string_view> keys;  // wherever they stand
  const char* why;
};

constexpr const char* kAdamW =
    "the optimizer is AdamW, with optimizer.lr, beta1, beta2, epsilon and weight_decay; the formats of its state are "
    "first_moment, second_moment and master";

const std::vector<Unavailable>& unavailable() {
  static const std::vector<Unavailable> kAll = {
      {{"epochs", "num_epochs", "max_epochs", "num_train_epochs"},
       "a run is as long as train.steps says, each step of train.global_batch sequences"},
      {{"gradient_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches"},
       "it follows from train.global_batch, which is ranks x train.micro_batch x accumulation"},
      {{"zero_stage", "zero", "zero_optimization", "fsdp"},
       "optimizer state is sharded (optimizer.sharding), gradients and parameters are not"},
      {{"tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size", "pipeline_parallel",
        "pipeline_parallel_size", "pipeline_model_parallel_size", "expert_parallel", "context_parallel"},
       "ranks are data parallel only, with optimizer state sharded over them"},
      {{"experts", "num_experts", "moe"}, "the models are gpt and encoder, and dense"},
      {{"momentum", "nesterov", "amsgrad"}, kAdamW}};
  return kAll;
}

// A setting of earlier versions that is a constant now. "[]": every entry of a list.
struct Fixed {
  const char *section, *key;
  const char* value;  // as such a version printed it; nullptr: that of scaler.preset; "": other settings replace it
  const char* instead;
};
constexpr const char *kByPreset = "scaler.preset sets it, see configs/reference.yaml",
                     *kByRules = "write rules, an ordered list in which the last match wins";
constexpr Fixed kFixed[] = {
    {"scaler", "growth_delay", nullptr, kByPreset},
    {"scaler", "refill", nullptr, kByPreset},
    {"straggler", "factor", "1.3", "straggler.window turns the comparison off"},
    {"stop_rules", "window", "128", "stop_rules.loss_z and grad_norm_z are its thresholds"},
    {"stop_rules", "max_rollbacks", "3", "stop_rules.action says what spikes lead to"},
    {"precision.adaptive", "max_switches", "10", "precision.adaptive.min_steps spaces them"},
    {"precision.adaptive", "band", "0.5", "the thresholds of the signals are settings"},
    {"precision.adaptive", "window", "100", "precision.adaptive.warmup says how much of it must be known"},
    {"precision.adaptive", "norm_quantile", "0.9", "precision.adaptive.norm_factor is the threshold"},
    {"precision.adaptive", "curvature_interval", "50", "precision.adaptive.curvature is the threshold"},
    {"precision.adaptive", "noise_interval", "50", "precision.adaptive.gradient_noise is the threshold"},
    {"precision", "ops", "", kByRules},
    {"precision", "layers", "", kByRules},
    {"precision.schedule[]", "ops", "", kByRules},
    {"precision.schedule[]", "layers", "", kByRules},
    {"precision.adaptive.levels[]", "ops", "", kByRules},
    {"precision.adaptive.levels[]", "layers", "", kByRules},
    {"test", "gradients", "", "write test.faults, whose entries have a kind"},
    {"test.faults[]", "value", "", "kind names the fault, see configs/reference_test.yaml"}};

// The preset of the section `scaler`; the defaults for other sections.
ScalerConfig preset_of(const ConfigNode& section) {
  const ConfigMember* const given = section.find("preset");
  const auto presets = scaler_preset_names();
  return given != nullptr && std::ranges::count(presets, given->value.text) > 0 ? scaler_preset(given->value.text)
                                                                                : ScalerConfig();
}

std::string value_of(const Fixed& fixed, const ScalerConfig& scaler) {
  if (fixed.value != nullptr) return fixed.value;
  if (fixed.key == std::string_view("refill")) {
    return scaler.refill == HysteresisRefill::kOnGrowth ? "growth" : "clean_step";
  }
  return fmt::format("{}", scaler.growth_delay);
}

std::optional<double> number_of(const ConfigMember* member) {
  return member != nullptr ? parse_number<double>(member->value) : std::nullopt;
}

bool has_value(const ConfigMember& member, const std::string& value) {
  const std::optional<double> number = number_of(&member);
  return number ? fmt::format("{}", *number) == value : member.value.text == value;
}

void warn_once(const std::string& setting, const ConfigMember& member, const std::string& what) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard lock(mutex);
  if (!said.insert(setting + "=" + member.value.text).second) return;
  log_warn("{}: {} = {} {}", member.origin, setting, member.value.text, what);
}

// The constants bound other settings, which a run with its own value could set beyond.
void keep_bounds(const std::string& key, ConfigNode& adaptive) {
  const auto bound = [&](const char* name, double least, double most) {
    ConfigMember* const other = adaptive.find(name);
    const std::optional<double> value = number_of(other);
    if (!value || *value == 0.0 || (*value >= least && *value <= most)) return;
    const std::string within = fmt::format("{}", std::clamp(*value, least, most));
    warn_once(std::string("precision.adaptive.") + name, *other,
              fmt::format("does not fit the constant {}, and is taken as {}", key, within));
    other->value.text = within;
  };
  const auto is_on = [&](const char* signal) { return number_of(adaptive.find(signal)).value_or(0.0) != 0.0; };
  if (key == "window") bound("warmup", 0.0, is_on("loss_roughness") ? 50.0 : 100.0);
  if (key == "curvature_interval" && is_on("curvature")) bound("stable_steps", 50.0, kMaxSteps);
  if (key == "noise_interval" && is_on("gradient_noise")) bound("stable_steps", 50.0, kMaxSteps);
}

// Removes settings of earlier versions from a section and from all below it. Where `written` by such a version, warns
// of other values; else they are an error, a line for each in `errors`.
void drop_fixed(ConfigNode& section, const std::string& path, bool written, std::vector<std::string>& errors) {
  const ScalerConfig scaler = preset_of(section);
  std::vector<std::string> changed;
  std::erase_if(section.members, [&](const ConfigMember& member) {
    const auto* const fixed =
        std::ranges::find_if(kFixed, [&](const Fixed& one) { return path == one.section && member.key == one.key; });
    if (fixed == std::end(kFixed)) return false;
    const std::string value = value_of(*fixed, scaler), setting = join_config_path(path, member.key);
    if (!value.empty() && has_value(member, value)) return true;
    if (value.empty() || !written) {
      errors.push_back(fmt::format("{}: {} is no setting any more{}: {}", member.origin, setting,
                                   value.empty() ? "" : fmt::format(", and is {}; remove it", value), fixed->instead));
      return false;
    }
    warn_once(setting, member, "is no setting any more, and is " + value);
    changed.push_back(member.key);
    return true;
  });
  if (path == "precision.adaptive") {
    for (const std::string& key : changed) keep_bounds(key, section);
  }
  for (ConfigMember& member : section.members)
    drop_fixed(member.value, join_config_path(path, member.key), written, errors);
  for (ConfigNode& item : section.items) drop_fixed(item, path + "[]", written, errors);
}

[[noreturn]] void refuse(const std::string& origin, const std::string& what, std::string_view why) {
  throw ConfigError("{}: {} is not available: {}", origin, what, why);
}

// Names of precisions that are a value of another key than `compute` or `recipe`. Rules have other keys.
void refuse_other_precision(const ConfigMember& member, const std::string& path) {
  if ((member.key != "compute" && member.key != "recipe") || path.find("rules[") != std::string::npos) return;
  const std::string& text = member.value.text;
  const bool is_compute = member.key == "compute";
  const std::string section = path.empty() ? "precision" : path;
  const auto refuse_word = [&](const std::string& why) {
    throw ConfigError("{}: {}: '{}' {}", member.origin, join_config_path(path, member.key), text, why);
  };
  const auto products = parse_fp32_products(text);
  if (products && *products != Fp32Products::kFp32) {
    refuse_word(fmt::format("is a way to multiply fp32 numbers: set {0}.compute=fp32 and {0}.fp32_products={1}",
                            section, text));
  }
  if (is_compute && parse_recipe(text)) {
    refuse_word(fmt::format("is a format of matrix products: set {}.recipe={}", section, text));
  }
  constexpr std::string_view kNarrow[] = {"fp8", "float8", "e4m3", "e5m2", "fp4", "float4", "e2m1", "int8", "int4"};
  if (is_compute && std::ranges::any_of(kNarrow, [&](std::string_view name) { return text.starts_with(name); })) {
    refuse_word(fmt::format("is too narrow to compute in: matrix products round to 8 or 4 bits by {}.recipe, one of {}",
                            section, kRecipeNames));
  }
  const bool is_wide = std::ranges::count(config_names::kCompute, text, &config_names::Name<DType>::first) > 0;
  if (!is_compute && is_wide) refuse_word(fmt::format("is a format to compute in: set {}.compute={}", section, text));
}

void refuse_below(const ConfigNode& node, const std::string& section) {
  for (const ConfigMember& member : node.members) {
    const std::string path = join_config_path(section, member.key);
    refuse_other_precision(member, section);
    for (const Unavailable& one : unavailable()) {
      if (std::ranges::count(one.keys, member.key) > 0) refuse(member.origin, path, one.why);
    }
    refuse_below(member.value, path);
  }
  for (size_t i = 0; i < node.items.size(); ++i) refuse_below(node.items[i], fmt::format("{}[{}]", section, i));
}

}  // namespace

void drop_fixed_settings(ConfigNode& root, bool written) {
  std::vector<std::string> errors;
  drop_fixed(root, "", written, errors);
  if (!errors.empty()) throw ConfigError("{}", fmt::join(errors, "\n"));
}

void refuse_unavailable(const ConfigNode& root) {
  if (const ConfigMember* const optimizer = root.find("optimizer")) {
    const auto refuse_name = [](const ConfigMember& member, const std::string& path) {
      const std::string& name = member.value.text;
      const bool is_ours = name == "adamw" || name == "AdamW";
      require<ConfigError>(!is_ours, "{}: {}: leave it out: {}", member.origin, path, kAdamW);
      refuse(member.origin, fmt::format("{}: '{}'", path, name), kAdamW);
    };
    if (optimizer->value.kind == ConfigNode::Kind::kScalar) refuse_name(*optimizer, "optimizer");
    for (const char* const key : {"name", "type", "kind", "algorithm"}) {
      if (const ConfigMember* const named = optimizer->value.find(key)) {
        refuse_name(*named, std::string("optimizer.") + key);
      }
    }
  }
  refuse_below(root, "");
}

ConfigSynonyms config_synonyms() {
  static const std::pair<const char*, std::vector<const char*>> kOurs[] = {
      {"optimizer.lr", {"learning_rate", "max_lr"}},
      {"optimizer.final_lr", {"min_lr"}},
      {"optimizer.schedule", {"lr_schedule", "lr_scheduler"}},
      {"optimizer.warmup_steps", {"warmup_iters"}},
      {"optimizer.epsilon", {"eps"}},
      {"optimizer.first_moment", {"moment_dtype"}},
      {"optimizer.weight_decay", {"wd"}},
      {"optimizer.clip.max_norm", {"grad_clip", "clip_grad"}},
      {"model.layers", {"n_layer", "num_layers", "depth"}},
      {"model.heads", {"n_head", "num_heads"}},
      {"model.width", {"n_embd", "d_model", "hidden_size"}},
      {"model.mlp_width", {"d_ff"}},
      {"model.context", {"block_size", "seq_len", "seq_length"}},
      {"model.vocab", {"vocab_size"}},
      {"model.init_stddev", {"init_std"}},
      {"model.tie_head", {"tie_embeddings", "tie_word_embeddings"}},
      {"model.head_dim", {"head_size"}},
      {"model.rope_base", {"rope_theta"}},
      {"model.window", {"sliding_window"}},
      {"model.kv_heads", {"n_kv_head", "num_key_value_heads"}},
      {"model.lora.rank", {"lora_r"}},
      {"model.lora.alpha", {"lora_alpha"}},
      {"model.lora.dropout", {"lora_dropout"}},
      {"model.lora.targets", {"target_modules"}},
      {"data.tokenizer", {"tokenizer_path", "tokenizer_name"}},
      {"train.init_from", {"init_from_checkpoint"}},
      {"train.steps", {"max_iters", "max_steps"}},
      {"train.global_batch", {"batch_size"}},
      {"train.run_dir", {"out_dir"}},
      {"format", {"rules[].dtype", "rules[].compute"}},
      {"precision.compute", {"dtype"}},
      {"precision.fp32_products", {"tf32"}},
      {"optimizer.sharding", {"sharded"}},
      {"scaler.init_scale", {"loss_scale"}},
      {"comm.bucket_mib", {"bucket_size_mb"}},
      {"checkpoint.interval", {"save_interval"}}};
  ConfigSynonyms synonyms;
  for (const auto& [ours, words] : kOurs) {
    for (const char* const word : words) synonyms.emplace_back(word, ours);
  }
  return synonyms;
}

}  // namespace mantissa
