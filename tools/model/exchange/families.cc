#include "tools/model/exchange/families.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr std::array<ModelFamily, 7> kFamilies = {{{"gpt2", "GPT2LMHeadModel", FamilyStyle::kGpt2},
                                                   {"llama", "LlamaForCausalLM"},
                                                   {"mistral", "MistralForCausalLM"},
                                                   {"qwen2", "Qwen2ForCausalLM"},
                                                   {"qwen3", "Qwen3ForCausalLM"},
                                                   {"smollm3", "SmolLM3ForCausalLM"},
                                                   {"arcee", "ArceeForCausalLM"}}};

struct Renamed {
  std::string_view ours;                   // below "blocks.N."
  std::array<std::string_view, 3> theirs;  // below the layer; several are stored apart
  bool is_transposed = false;              // GPT-2's Conv1D
};

constexpr Renamed kGpt2Names[] = {{"norm1", {"ln_1"}},
                                  {"attention.qkv", {"attn.c_attn"}, true},
                                  {"attention.out", {"attn.c_proj"}, true},
                                  {"norm2", {"ln_2"}},
                                  {"mlp.up", {"mlp.c_fc"}, true},
                                  {"mlp.down", {"mlp.c_proj"}, true},
                                  {"token_embedding", {"transformer.wte"}},
                                  {"position_embedding", {"transformer.wpe"}},
                                  {"final_norm", {"transformer.ln_f"}},
                                  {"head", {"lm_head"}}};
constexpr Renamed kLlamaNames[] = {{"norm1", {"input_layernorm"}},
                                   {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                                   {"attention.query_norm", {"self_attn.q_norm"}},
                                   {"attention.key_norm", {"self_attn.k_norm"}},
                                   {"attention.out", {"self_attn.o_proj"}},
                                   {"norm2", {"post_attention_layernorm"}},
                                   {"mlp.up", {"mlp.gate_proj", "mlp.up_proj"}},
                                   {"mlp.down", {"mlp.down_proj"}},
                                   {"token_embedding", {"model.embed_tokens"}},
                                   {"final_norm", {"model.norm"}},
                                   {"head", {"lm_head"}}};

}  // namespace

const ModelFamily& family_of(const nlohmann::json& config, const std::string& file) {
  std::string named = config.is_object() && config.contains("model_type") && config["model_type"].is_string()
                          ? config["model_type"].get<std::string>()
                          : "";
  for (const ModelFamily& family : kFamilies) {
    if (named == family.model_type) return family;
  }
  std::vector<std::string_view> known;
  known.reserve(kFamilies.size());
  for (const ModelFamily& family : kFamilies) known.push_back(family.model_type);
  throw ConfigError(fmt::format("{}: model_type: expected one of {}, got '{}'", file, fmt::join(known, ", "), named));
}

std::string_view gpt2_name(Activation activation) {
  if (activation == Activation::kGeluTanh) return "gelu_new";
  if (activation == Activation::kGeluErf) return "gelu";
  return activation == Activation::kReluSquared ? "relu2" : "";
}

std::vector<std::string> obstacles(const ModelFamily& family, const ModelConfig& m) {
  std::vector<std::string> found;
  const auto require = [&found](bool fits, std::string what) {
    if (!fits) found.push_back(std::move(what));
  };
  const std::string_view type = family.model_type;
  const bool qkv = m.resolved(m.qkv_bias), out = m.resolved(m.out_bias), mlp = m.resolved(m.mlp_bias);
  require(m.name == "gpt", "model.name = " + m.name);
  require(m.logit_softcap == 0.0f, "model.logit_softcap");
  if (family.style == FamilyStyle::kGpt2) {
    require(m.norm == NormKind::kLayerNorm, "model.norm = rms_norm");
    require(m.position == Position::kLearned, "model.position = rope");
    for (const auto& [name, activation] : kActivationNames) {
      require(activation != m.activation || !gpt2_name(activation).empty(), fmt::format("model.activation = {}", name));
    }
    require(m.bias && qkv && out && mlp, "layers without biases");
    require(m.resolved_kv_heads() == m.heads, "model.kv_heads");
    require(m.head_dim == 0 || m.head_dim * m.heads == m.width, "model.head_dim");
    require(!m.qk_norm, "model.qk_norm");
    require(m.window == 0, "model.window");
    require(m.attention_scale == 0.0f || m.attention_scale == 1.0f, "model.attention_scale");
    return found;
  }
  require(m.norm == NormKind::kRmsNorm, "model.norm = layer_norm");
  require(m.position == Position::kRope, "model.position = learned");
  require(m.activation == (type == "arcee" ? Activation::kReluSquared : Activation::kSwiglu), "model.activation");
  require(m.attention_scale == 0.0f, "model.attention_scale");
  require(m.qk_norm == (type == "qwen3"), "model.qk_norm");
  require(type == "smollm3" || m.rope_blocks == BlockSelection::all(), "model.rope_blocks");
  if (type == "qwen2") {
    require(qkv && !out, "model.qkv_bias and model.out_bias");
  } else if (type == "mistral") {
    require(!qkv && !out, "model.qkv_bias and model.out_bias");
  } else {
    require(qkv == out, "model.qkv_bias and model.out_bias");
  }
  require(!mlp || type == "llama" || type == "smollm3" || type == "arcee", "model.mlp_bias");
  if (type == "llama" || type == "arcee") require(m.window == 0, "model.window");
  if (type == "mistral") {
    require(m.window == 0 || m.window_blocks == BlockSelection::all(), "model.window_blocks");
  }
  return found;
}

const ModelFamily& family_for(const ModelConfig& model, std::optional<std::string_view> wanted) {
  std::vector<std::string> why;
  for (const ModelFamily& family : kFamilies) {
    if (wanted == family.model_type && obstacles(family, model).empty()) return family;
  }
  for (const ModelFamily& family : kFamilies) {
    const std::vector<std::string> found = obstacles(family, model);
    if (found.empty()) return family;
    why.push_back(fmt::format("{}: {}", family.model_type, fmt::join(found, ", ")));
  }
  throw ConfigError(fmt::format("no family of Hugging Face models is like this one. What each of them lacks:\n  {}",
                                fmt::join(why, "\n  ")));
}

ParameterParts hf_parts(const ModelFamily& family, const ModelConfig& model, const Parameter& parameter) {
  const bool is_gpt2 = family.style == FamilyStyle::kGpt2;
  std::string_view layer = parameter.layer();
  const std::string role = parameter.name.substr(parameter.name.rfind('.'));  // ".weight"
  std::string prefix;
  if (layer.starts_with("blocks.")) {
    layer.remove_prefix(layer.find('.') + 1);
    prefix = fmt::format("{}.{}.", is_gpt2 ? "transformer.h" : "model.layers", layer.substr(0, layer.find('.')));
    layer.remove_prefix(layer.find('.') + 1);
  }
  const std::span<const Renamed> names_of_family = is_gpt2 ? std::span<const Renamed>(kGpt2Names) : kLlamaNames;
  const auto renamed = std::ranges::find(names_of_family, layer, &Renamed::ours);
  MANTISSA_CHECK(renamed != names_of_family.end(), "[families] no name for the layer '{}'", layer);
  std::vector<int64_t> shape = parameter.shape.extents();
  ParameterParts result{.parts = {}, .is_transposed = renamed->is_transposed && shape.size() == 2};
  if (result.is_transposed) std::swap(shape[0], shape[1]);
  std::vector<std::string_view> names;
  names.reserve(renamed->theirs.size());
  for (const std::string_view name : renamed->theirs) {
    if (!name.empty()) names.push_back(name);
  }
  if (names.size() == 2 && !is_gated(model.activation)) names.erase(names.begin());  // there is no gate
  for (size_t i = 0; i < names.size(); ++i) {
    std::vector<int64_t> part = shape;
    if (names.size() == 2) part[0] = shape[0] / 2;
    if (names.size() == 3) part[0] = (i == 0 ? model.heads : model.resolved_kv_heads()) * model.resolved_head_dim();
    result.parts.push_back({fmt::format("{}{}{}", prefix, names[i], role), std::move(part)});
  }
  return result;
}

}  // namespace mantissa
