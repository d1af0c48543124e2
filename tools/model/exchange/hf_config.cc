#include "tools/model/exchange/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/base/check.h"
#include "core/io/json_node.h"

namespace mantissa {
namespace {

using nlohmann::json;

constexpr int64_t kMostSize = int64_t{1} << 30, kMostLayers = 10000;

// Keys that change nothing here: of caches, of training, of tokens, and of functions other than the next token's.
constexpr std::string_view kWithoutEffect =
    " _model_name_or_path _attn_implementation _attn_implementation_autoset _name_or_path architectures "
    "attention_dropout attn_pdrop"
    " bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward decoder_start_token_id"
    " diversity_penalty do_sample dtype early_stopping embd_pdrop eos_token_id exponential_decay_length_penalty"
    " finetuning_task forced_bos_token_id forced_eos_token_id id2label is_decoder"
    " is_encoder_decoder is_llama_config keys_to_ignore_at_inference label2id length_penalty max_length min_length"
    " model_type n_ctx num_beam_groups num_beams output_attentions output_hidden_states pad_token_id prefix"
    " pretraining_tp problem_type reorder_and_upcast_attn repetition_penalty resid_pdrop return_dict sep_token_id"
    " suppress_tokens task_specific_params temperature tokenizer_class top_k top_p torch_dtype torchscript"
    " transformers.js_config transformers_version typical_p unk_token_id use_bfloat16 use_cache ";

bool has_no_effect(std::string_view key) {
  return kWithoutEffect.find(fmt::format(" {} ", key)) != std::string_view::npos;
}

// Reads keys, and collects missing keys, wrong types and unsupported values.
class KeyReader {
 public:
  explicit KeyReader(const json& config) : config_(config) {}

  const json* find(const std::string& key) {
    seen_.insert(key);
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }
  template <typename T>
  T get(const std::string& key, T usual) {
    const json* const value = find(key);
    if (value == nullptr) return usual;
    const bool fits = std::is_same_v<T, bool>       ? value->is_boolean()
                      : std::is_integral_v<T>       ? value->is_number_integer()
                      : std::is_floating_point_v<T> ? value->is_number()
                                                    : value->is_string();
    if (!fits) {
      refuse(key, fmt::format("expected {}", std::is_same_v<T, bool>       ? "true or false"
                                             : std::is_integral_v<T>       ? "a whole number"
                                             : std::is_floating_point_v<T> ? "a number"
                                                                           : "a text"));
      return usual;
    }
    return value->get<T>();
  }
  bool has(const std::string& key) const { return config_.contains(key); }
  // A whole number > 0 that must be there.
  int64_t size(const std::string& key, int64_t most = kMostSize) {
    if (find(key) == nullptr) {
      problems_.push_back(fmt::format("{} is missing", key));
      return 1;
    }
    return positive(key, 1, most);
  }
  int64_t positive(const std::string& key, int64_t usual, int64_t most = kMostSize) {
    const int64_t value = get<int64_t>(key, usual);
    if (value >= 1 && value <= most) return value;
    refuse(key, fmt::format("expected a whole number from 1 to {}", most));
    return 1;
  }
  // A number above 0.
  float scale(const std::string& key, float usual) {
    const auto value = get<float>(key, usual);
    if (value > 0.0f && std::isfinite(value)) return value;
    refuse(key, "expected a number above 0");
    return usual;
  }
  void refuse(const std::string& key, const std::string& expected) {
    const json value = config_.value(key, json());
    const std::string shown = value == json::object() ? JsonNode::kEmptyObject : value.dump();
    problems_.push_back(fmt::format("{} = {}: {}", key, shown, expected));
  }
  template <typename T>
  void require(const std::string& key, T usual, const std::string& why) {
    if (get<T>(key, usual) != usual) refuse(key, why);
  }

  std::vector<std::string> unknown() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : config_.items()) {
      if (!seen_.contains(key) && !has_no_effect(key)) keys.push_back(key);
    }
    return keys;
  }
  std::vector<std::string>& problems() { return problems_; }

 private:
  const json& config_;
  std::set<std::string> seen_;
  std::vector<std::string> problems_;
};

void read_gpt2(KeyReader& keys, ModelConfig& model) {
  model.layers = keys.size("n_layer", kMostLayers);
  model.width = keys.size("n_embd");
  model.heads = keys.size("n_head");
  model.context = keys.size("n_positions");
  model.mlp_width = keys.positive("n_inner", 4 * model.width);
  model.norm_epsilon = keys.scale("layer_norm_epsilon", 1e-5f);
  model.tie_head = keys.get<bool>("tie_word_embeddings", true);
  const std::string activation = keys.get<std::string>("activation_function", "gelu_new");
  const std::string name = activation == "gelu_pytorch_tanh" ? "gelu_new" : activation;
  const auto* const known =
      std::ranges::find_if(kActivationNames, [&](const auto& entry) { return gpt2_name(entry.second) == name; });
  if (name.empty() || known == std::end(kActivationNames)) {
    keys.refuse("activation_function", "supported are gelu_new, gelu_pytorch_tanh, gelu and relu2");
  }
  model.activation = known->second;
  if (!keys.get<bool>("scale_attn_weights", true)) model.attention_scale = 1.0f;
  keys.require<bool>("scale_attn_by_inverse_layer_idx", false, "scores are scaled alike in all layers here");
  keys.require<bool>("add_cross_attention", false, "there is no cross-attention here");
  for (const char* const key :
       {"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"}) {
    keys.find(key);
  }
}

// rope_parameters, or rope_theta and rope_scaling of older files; default_theta of the family where none is given.
void read_rope(KeyReader& keys, ModelConfig& model, float default_theta) {
  const json *const newer = keys.find("rope_parameters"), *const older = keys.find("rope_scaling");
  if (newer != nullptr && older != nullptr && *newer != *older) {
    return keys.refuse("rope_scaling", "rope_parameters says something else; leave one of the two");
  }
  const json* const rope = newer != nullptr ? newer : older;
  const std::string name = newer != nullptr ? "rope_parameters" : "rope_scaling";
  model.rope.base = keys.scale("rope_theta", default_theta);
  keys.require<bool>("rope_interleaved", false, "pairs of channels are half a head apart here");
  if (rope == nullptr) return;
  if (!rope->is_object()) return keys.refuse(name, "expected an object");
  KeyReader inner(*rope);
  model.rope.base = inner.scale("rope_theta", model.rope.base);
  std::string kind = inner.get<std::string>("type", "default");
  kind = inner.get<std::string>("rope_type", kind);
  const float partial = inner.get<float>("partial_rotary_factor", 1.0f);
  if (partial != 1.0f) inner.refuse("partial_rotary_factor", "whole heads rotate here");
  if (kind == "linear") {
    model.rope.scaling = RopeScaling::kLinear;
    model.rope.factor = inner.scale("factor", 1.0f);
  } else if (kind == "llama3") {
    model.rope.scaling = RopeScaling::kLlama3;
    model.rope.factor = inner.scale("factor", 1.0f);
    model.rope.low_frequency_factor = inner.scale("low_freq_factor", 1.0f);
    model.rope.high_frequency_factor = inner.scale("high_freq_factor", 4.0f);
    if (model.rope.low_frequency_factor >= model.rope.high_frequency_factor) {
      inner.refuse("low_freq_factor", "expected less than high_freq_factor");
    }
    // transformers prefers the key of the whole model.
    const std::string context = "original_max_position_embeddings";
    model.rope.original_context = inner.positive(context, model.context);
    model.rope.original_context = keys.positive(context, model.rope.original_context);
  } else if (kind != "default") {
    inner.refuse(inner.has("rope_type") ? "rope_type" : "type", "supported are default, linear and llama3");
  }
  for (const std::string& key : inner.unknown()) inner.refuse(key, "not known");
  for (const std::string& problem : inner.problems()) keys.problems().push_back(fmt::format("{}.{}", name, problem));
}

// Blocks with a sliding window, from layer_types where they are given.
void read_window(KeyReader& keys, ModelConfig& model, const ModelFamily& family) {
  const bool is_mistral = family.model_type == "mistral";
  const json* const given = keys.find("sliding_window");
  const bool uses = is_mistral || keys.get<bool>("use_sliding_window", false);
  // Mistral's default holds where the key is missing, and not where it is null.
  const int64_t window = given != nullptr ? keys.positive("sliding_window", 1) : 4096;
  const bool is_null = is_mistral && given == nullptr && keys.has("sliding_window");
  const int64_t first = keys.get<int64_t>("max_window_layers", 28);
  std::vector<bool> slides(static_cast<size_t>(model.layers));
  for (size_t block = 0; block < slides.size(); ++block) {
    slides[block] = uses && !is_null && (is_mistral || static_cast<int64_t>(block) >= first);
    if (family.model_type == "smollm3") {
      slides[block] = uses && given != nullptr && !model.rope_blocks.contains(static_cast<int64_t>(block));
    }
  }
  if (const json* const types = keys.find("layer_types"); types != nullptr) {
    if (is_mistral) return keys.refuse("layer_types", "with them the model is a Ministral, which is not supported");
    if (!types->is_array() || types->size() != slides.size()) {
      return keys.refuse("layer_types", fmt::format("expected {} entries, one a layer", model.layers));
    }
    for (size_t block = 0; block < slides.size(); ++block) {
      const json& type = (*types)[block];
      if (type != "full_attention" && type != "sliding_attention") {
        return keys.refuse("layer_types", "supported are full_attention and sliding_attention");
      }
      slides[block] = type == "sliding_attention";
    }
  }
  if (std::ranges::count(slides, true) == 0) return;
  model.window = window;
  model.window_blocks = BlockSelection::of(slides);
}

void read_no_rope_layers(KeyReader& keys, ModelConfig& model) {
  const int64_t interval = keys.positive("no_rope_layer_interval", 4);
  std::vector<bool> rotates(static_cast<size_t>(model.layers));
  for (size_t block = 0; block < rotates.size(); ++block) {
    rotates[block] = (static_cast<int64_t>(block) + 1) % interval != 0;
  }
  if (const json* const given = keys.find("no_rope_layers")) {  // despite its name, 1 is a layer with rope
    const auto is_flag = [](const json& entry) { return entry == json(0) || entry == json(1); };
    const bool fits = given->is_array() && given->size() >= rotates.size() && std::ranges::all_of(*given, is_flag);
    if (!fits) return keys.refuse("no_rope_layers", fmt::format("expected {} entries, each 0 or 1", model.layers));
    for (size_t block = 0; block < rotates.size(); ++block) rotates[block] = (*given)[block] == 1;
  }
  model.rope_blocks = BlockSelection::of(rotates);
}

void read_llama(KeyReader& keys, ModelConfig& model, const ModelFamily& family) {
  const std::string_view type = family.model_type;
  model.norm = NormKind::kRmsNorm;
  model.position = Position::kRope;
  model.bias = false;
  model.layers = keys.size("num_hidden_layers", kMostLayers);
  model.width = keys.size("hidden_size");
  model.heads = keys.size("num_attention_heads");
  model.kv_heads = keys.positive("num_key_value_heads", model.heads);
  if (model.kv_heads == model.heads) model.kv_heads = 0;
  model.head_dim = keys.positive("head_dim", type == "qwen3" ? 128 : std::max<int64_t>(model.width / model.heads, 1));
  if (model.width % model.heads == 0 && model.head_dim == model.width / model.heads) model.head_dim = 0;
  model.mlp_width = keys.size("intermediate_size");
  model.context = keys.size("max_position_embeddings");
  model.norm_epsilon = keys.scale("rms_norm_eps", type == "arcee" ? 1e-5f : 1e-6f);
  model.tie_head = keys.get<bool>("tie_word_embeddings", type == "smollm3");
  model.qk_norm = type == "qwen3";
  const bool is_arcee = type == "arcee";
  model.activation = is_arcee ? Activation::kReluSquared : Activation::kSwiglu;
  const std::string activation = keys.get<std::string>("hidden_act", is_arcee ? "relu2" : "silu");
  if (is_arcee ? activation != "relu2" : activation != "silu" && activation != "swish") {
    keys.refuse("hidden_act", is_arcee ? "expected relu2" : "expected silu");
  }
  if (type == "qwen2") {
    model.qkv_bias = LinearBias::kOn;
  } else if (keys.get<bool>("attention_bias", false)) {
    model.qkv_bias = model.out_bias = LinearBias::kOn;
  }
  if (keys.get<bool>("mlp_bias", false)) model.mlp_bias = LinearBias::kOn;
  read_rope(keys, model, type == "smollm3" ? 2e6f : 10000.0f);
  if (type == "smollm3") read_no_rope_layers(keys, model);
  if (type != "llama" && type != "arcee") read_window(keys, model, family);
}

// The number whose shortest text is the float's: 1e-05, not 9.999999747378752e-06.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

json rope_parameters(const RopeFrequencies& rope) {
  json parameters = {{"rope_theta", shortest(rope.base)}, {"rope_type", "default"}};
  if (rope.scaling == RopeScaling::kNone) return parameters;
  parameters["factor"] = shortest(rope.factor);
  parameters["rope_type"] = rope.scaling == RopeScaling::kLinear ? "linear" : "llama3";
  if (rope.scaling == RopeScaling::kLinear) return parameters;
  parameters["low_freq_factor"] = shortest(rope.low_frequency_factor);
  parameters["high_freq_factor"] = shortest(rope.high_frequency_factor);
  parameters["original_max_position_embeddings"] = rope.original_context;
  return parameters;
}

json gpt2_keys(const ModelConfig& model) {
  return {{"activation_function", gpt2_name(model.activation)},
          {"layer_norm_epsilon", shortest(model.norm_epsilon)},
          {"n_embd", model.width},
          {"n_head", model.heads},
          {"n_inner", model.resolved_mlp_width()},
          {"n_layer", model.layers},
          {"n_positions", model.context},
          {"scale_attn_weights", model.attention_scale == 0.0f}};
}

json llama_keys(const ModelConfig& model, std::string_view type) {
  json keys = {{"head_dim", model.resolved_head_dim()},
               {"hidden_act", model.activation == Activation::kReluSquared ? "relu2" : "silu"},
               {"hidden_size", model.width},
               {"intermediate_size", model.resolved_mlp_width()},
               {"max_position_embeddings", model.context},
               {"num_attention_heads", model.heads},
               {"num_hidden_layers", model.layers},
               {"num_key_value_heads", model.resolved_kv_heads()},
               {"rms_norm_eps", shortest(model.norm_epsilon)},
               {"rope_parameters", rope_parameters(model.rope)},
               {"rope_theta", shortest(model.rope.base)}};
  if (model.rope.scaling != RopeScaling::kNone) keys["rope_scaling"] = keys["rope_parameters"];
  if (type != "qwen2" && type != "mistral") keys["attention_bias"] = model.resolved(model.qkv_bias);
  if (type == "llama" || type == "smollm3" || type == "arcee") keys["mlp_bias"] = model.resolved(model.mlp_bias);
  const bool slides = model.window > 0;
  if (type == "mistral") keys["sliding_window"] = slides ? json(model.window) : json();
  if (type == "qwen2" || type == "qwen3" || type == "smollm3") {
    keys["use_sliding_window"] = slides;
    keys["sliding_window"] = slides ? json(model.window) : json();
    json types = json::array();
    int64_t first = model.layers;
    for (int64_t block = model.layers - 1; block >= 0; --block) {
      if (model.window_of(block) > 0) first = block;
    }
    for (int64_t block = 0; block < model.layers; ++block) {
      types.push_back(model.window_of(block) > 0 ? "sliding_attention" : "full_attention");
    }
    keys["layer_types"] = types;
    if (type != "smollm3") keys["max_window_layers"] = first;
  }
  if (type == "smollm3") {
    json rotates = json::array();
    for (int64_t block = 0; block < model.layers; ++block) rotates.push_back(model.rope_blocks.contains(block) ? 1 : 0);
    keys["no_rope_layers"] = rotates;
  }
  return keys;
}

}  // namespace

ModelConfig read_hf_config(const json& config, const std::string& file, std::vector<std::string>* ignored) {
  const ModelFamily& family = family_of(config, file);
  KeyReader keys(config);
  ModelConfig model;
  model.vocab = keys.size("vocab_size");
  model.init_stddev = keys.scale("initializer_range", 0.02f);
  if (const json* const quantized = keys.find("quantization_config")) {
    keys.refuse("quantization_config",
                fmt::format("weights in '{}' are not read; save them in F32, BF16 or F16",
                            quantized->is_object() ? quantized->value("quant_method", json("")).dump() : ""));
  }
  if (family.style == FamilyStyle::kGpt2) read_gpt2(keys, model);
  if (family.style == FamilyStyle::kLlama) read_llama(keys, model, family);
  require<ConfigError>(keys.problems().empty(), "{}: this {} model does not fit:\n  {}", file, family.model_type,
                       fmt::join(keys.problems(), "\n  "));
  if (ignored != nullptr) *ignored = keys.unknown();
  return model;
}

json write_hf_config(const ModelConfig& model, const ModelFamily& family, std::string_view dtype, const json& carried) {
  json config = json::object();
  for (const auto& [key, value] : carried.items()) {
    if (has_no_effect(key)) config[key] = value;
  }
  config.erase("transformers_version");
  const bool is_gpt2 = family.style == FamilyStyle::kGpt2;
  config.update(is_gpt2 ? gpt2_keys(model) : llama_keys(model, family.model_type));
  config.update({{"architectures", {family.architecture}},
                 {"dtype", dtype},
                 {"initializer_range", shortest(model.init_stddev)},
                 {"model_type", family.model_type},
                 {"tie_word_embeddings", model.tie_head},
                 {"torch_dtype", dtype},
                 {"vocab_size", model.vocab}});
  return config;
}

}  // namespace mantissa
