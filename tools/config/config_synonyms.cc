// Names that users of other programs try: messages about unknown keys give ours, or say what is not available.
#include <fmt/core.h>

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

// A setting of earlier versions that is a constant now.
struct Fixed {
  const char *section, *key;
  const char* value;  // as such a version printed it; nullptr: that of scaler.preset; "": other settings replace it
  const char* instead;
};
constexpr const char* kByPreset = "scaler.preset sets it: deepspeed, megatron, pytorch or none";
constexpr Fixed kFixed[] = {
    {"scaler", "growth_delay", nullptr, kByPreset},
    {"scaler", "refill", "growth", kByPreset},
    {"straggler", "factor", "1.3", "straggler.window turns the comparison off"},
    {"stop_rules", "window", "128", "stop_rules.loss_z and grad_norm_z are its thresholds"},
    {"stop_rules", "max_rollbacks", "3", "stop_rules.action says what spikes lead to"},
    {"precision.adaptive", "max_switches", "10", "precision.adaptive.min_steps spaces them"},
    {"precision.adaptive", "band", "0.5", "the thresholds of the signals are settings"},
    {"precision.adaptive", "window", "100", "precision.adaptive.warmup says how much of it must be known"},
    {"precision.adaptive", "norm_quantile", "0.9", "precision.adaptive.norm_factor is the threshold"},
    {"precision.adaptive", "curvature_interval", "50", "precision.adaptive.curvature is the threshold"},
    {"precision.adaptive", "noise_interval", "50", "precision.adaptive.gradient_noise is the threshold"},
    {"precision", "ops", "", "write precision.rules, an ordered list in which the last match wins"},
    {"precision", "layers", "", "write precision.rules, an ordered list in which the last match wins"},
    {"test", "gradients", "", "write test.faults, whose entries have a kind"}};

std::string value_of(const Fixed& fixed, const ConfigNode& section) {
  if (fixed.value != nullptr) return fixed.value;
  const ConfigMember* const preset = section.find("preset");
  const bool has_preset = preset != nullptr && preset->value.text != "none";
  const ScalerConfig scaler = has_preset ? scaler_preset(preset->value.text) : ScalerConfig();
  return fmt::format("{}", scaler.growth_delay);
}

void refuse_fixed(const ConfigNode& root) {
  for (const Fixed& fixed : kFixed) {
    const ConfigNode* const section = root.below(fixed.section);
    const ConfigMember* const member = section != nullptr ? section->find(fixed.key) : nullptr;
    if (member == nullptr) continue;
    const std::string value = value_of(fixed, *section);
    throw ConfigError(fmt::format("{}: {}.{} is no setting any more{}: {}", member->origin, fixed.section, fixed.key,
                                  value.empty() ? "" : fmt::format(", and is {}; remove it", value), fixed.instead));
  }
}

[[noreturn]] void refuse(const std::string& origin, const std::string& what, std::string_view why) {
  throw ConfigError(fmt::format("{}: {} is not available: {}", origin, what, why));
}

// Short names of precisions that are no value of `compute` or `recipe`. Rules have other keys.
void refuse_fp32_products(const ConfigMember& member, const std::string& section) {
  if ((member.key != "compute" && member.key != "recipe") || section.find("rules[") != std::string::npos) return;
  const std::string& text = member.value.text;
  const auto products = parse_fp32_products(text);
  if (!products || *products == Fp32Products::kFp32) return;
  throw ConfigError(
      fmt::format("{}: {}.{}: '{}' is a way to multiply fp32 numbers: set {}.compute=fp32 and {}.fp32_products={}",
                  member.origin, section, member.key, text, section, section, text));
}

void refuse_below(const ConfigNode& node, const std::string& section) {
  for (const ConfigMember& member : node.members) {
    const std::string path = join_config_path(section, member.key);
    refuse_fp32_products(member, section);
    for (const Unavailable& one : unavailable()) {
      if (std::ranges::count(one.keys, member.key) > 0) refuse(member.origin, path, one.why);
    }
    refuse_below(member.value, path);
  }
  for (size_t i = 0; i < node.items.size(); ++i) refuse_below(node.items[i], fmt::format("{}[{}]", section, i));
}

}  // namespace

void drop_fixed_settings(ConfigNode& root) {
  static std::mutex mutex;
  static std::set<std::string> said;
  for (const Fixed& fixed : kFixed) {
    auto* const section = const_cast<ConfigNode*>(root.below(fixed.section));
    if (section == nullptr) continue;
    std::erase_if(section->members, [&](const ConfigMember& member) {
      const std::string value = value_of(fixed, *section);
      if (value.empty() || member.key != fixed.key) return false;
      const std::string text = fmt::format("{}: {}.{} = {} is no setting any more, and is {}", member.origin,
                                           fixed.section, fixed.key, member.value.text, value);
      const std::lock_guard lock(mutex);
      if (member.value.text != value && said.insert(text).second) log_warn("{}", text);
      return true;
    });
  }
}

void refuse_unavailable(const ConfigNode& root) {
  refuse_fixed(root);
  if (const ConfigMember* const optimizer = root.find("optimizer")) {
    const auto refuse_name = [](const ConfigMember& member, const std::string& path) {
      const std::string& name = member.value.text;
      if (name == "adamw" || name == "AdamW") {
        throw ConfigError(fmt::format("{}: {}: leave it out: {}", member.origin, path, kAdamW));
      }
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
