#include "tools/model/exchange/hf_names.h"

#include <fmt/core.h>

#include "core/base/check.h"

namespace mantissa {
namespace {

struct Renamed {
  std::string_view ours;                   // below "blocks.N."
  std::array<std::string_view, 3> theirs;  // below the layer; several are stored apart
  bool is_transposed = false;              // GPT-2's Conv1D
};

constexpr Renamed kGpt2Layer[] = {
    {"norm1", {"ln_1"}}, {"attention.qkv", {"attn.c_attn"}, true}, {"attention.out", {"attn.c_proj"}, true},
    {"norm2", {"ln_2"}}, {"mlp.up", {"mlp.c_fc"}, true},           {"mlp.down", {"mlp.c_proj"}, true}};
constexpr Renamed kLlamaLayer[] = {{"norm1", {"input_layernorm"}},
                                   {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                                   {"attention.query_norm", {"self_attn.q_norm"}},
                                   {"attention.key_norm", {"self_attn.k_norm"}},
                                   {"attention.out", {"self_attn.o_proj"}},
                                   {"norm2", {"post_attention_layernorm"}},
                                   {"mlp.up", {"mlp.gate_proj", "mlp.up_proj"}},
                                   {"mlp.down", {"mlp.down_proj"}}};
constexpr Renamed kGpt2Other[] = {{"token_embedding", {"transformer.wte"}},
                                  {"position_embedding", {"transformer.wpe"}},
                                  {"final_norm", {"transformer.ln_f"}},
                                  {"head", {"lm_head"}}};
constexpr Renamed kLlamaOther[] = {
    {"token_embedding", {"model.embed_tokens"}}, {"final_norm", {"model.norm"}}, {"head", {"lm_head"}}};

const Renamed& find(std::span<const Renamed> table, std::string_view layer) {
  for (const Renamed& one : table) {
    if (one.ours == layer) return one;
  }
  throw ContractError(fmt::format("[hf_names] no name for the layer '{}'", layer));
}

}  // namespace

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
  const bool is_block = !prefix.empty();
  const Renamed& renamed = is_block ? find(is_gpt2 ? std::span<const Renamed>(kGpt2Layer) : kLlamaLayer, layer)
                                    : find(is_gpt2 ? std::span<const Renamed>(kGpt2Other) : kLlamaOther, layer);
  std::vector<int64_t> shape = parameter.shape.extents();
  ParameterParts result{.parts = {}, .is_transposed = renamed.is_transposed && shape.size() == 2};
  if (result.is_transposed) std::swap(shape[0], shape[1]);
  std::vector<std::string_view> names;
  names.reserve(renamed.theirs.size());
  for (const std::string_view name : renamed.theirs) {
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

bool is_without_use(const ModelConfig& model, std::string_view tensor) {
  return tensor.ends_with(".attn.bias") || tensor.ends_with(".attn.masked_bias") ||
         tensor.ends_with(".rotary_emb.inv_freq") || (model.tie_head && tensor == "lm_head.weight");
}

}  // namespace mantissa
