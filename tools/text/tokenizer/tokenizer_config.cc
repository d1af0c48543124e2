// tokenizer_config.json beside a tokenizer.json. Source of the order and the ids: transformers 5.24,
// tokenization_utils_tokenizers.py, and tokenizers 0.23, AddedVocabulary::add_tokens().
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "core/base/log.h"
#include "core/io/files.h"
#include "core/io/json_node.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {
namespace {

// "<s>", or an object with the token and its flags.
AddedToken token_of(const JsonNode& node, bool is_named) {
  return node.value().is_object() ? read_added_token(node, is_named)
                                  : AddedToken{.content = node.text(), .special = true};
}

// The tokens of a list, or of an object, whose order in the file gives the ids.
std::vector<nlohmann::json> tokens_in(const JsonNode& list, const std::string& path, const char* key) {
  const auto as_written = nlohmann::ordered_json::parse(text_of_file(path).value_or(""), nullptr, false);
  const bool has_order = as_written.is_object() && as_written.contains(key);
  std::vector<nlohmann::json> tokens;
  for (const auto& token : has_order ? as_written.at(key) : nlohmann::ordered_json(list.value())) {
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace

void add_configured_tokens(const std::string& folder, const TokenMap& vocab, int64_t vocab_size,
                           TokenizerParts& parts) {
  const std::filesystem::path at = folder;
  const std::string path = (at / "tokenizer_config.json").string(), older = (at / "special_tokens_map.json").string();
  std::error_code ignored;
  nlohmann::json json = std::filesystem::exists(path, ignored) ? JsonNode::read(path) : nlohmann::json::object();
  if (!JsonNode(json, path).object().contains("added_tokens_decoder") && std::filesystem::exists(older, ignored)) {
    json.update(read_json_object<DataError>(older));
  }
  const JsonNode config(json, path);
  parts.splits_special_tokens = config.flag("split_special_tokens", false);
  // `has_flags`: they replace those of tokenizer.json.
  const auto add = [&](AddedToken token, bool has_flags = false) -> std::optional<int32_t> {
    if (token.content.empty()) return std::nullopt;
    const auto known = std::ranges::find(parts.added_tokens, token.content, &AddedToken::content);
    if (known != parts.added_tokens.end()) {
      token.id = known->id;
      token.special |= known->special;
      known->special = token.special;
      if (has_flags) *known = token;
      return known->id;
    }
    int64_t next = vocab_size;
    for (const AddedToken& other : parts.added_tokens) next = std::max(next, int64_t{other.id} + 1);
    const auto in_vocab = vocab.find(token.content);
    parts.configured += in_vocab ? 0 : 1;
    token.id = in_vocab.value_or(static_cast<int32_t>(next));
    parts.added_tokens.push_back(std::move(token));
    return parts.added_tokens.back().id;
  };
  if (const auto decoder = config.find("added_tokens_decoder")) {
    std::map<int32_t, JsonNode> by_id;
    for (const auto& [key, value] : decoder->object().items()) {
      int32_t id = -1;
      std::from_chars(key.data(), key.data() + key.size(), id);
      decoder->expect(id >= 0, "ids of tokens as keys");
      by_id.emplace(id, decoder->at(key));
    }
    for (const auto& [id, node] : by_id) {
      if (const auto given = add(token_of(node, false), true); given && *given != id) {
        log_warn("{}: the token has id {} here, as in transformers; correct the id or tokenizer.json", node.where(),
                 *given);
      }
    }
  }
  for (const char* const key :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const auto node = config.find(key);
    const std::optional<int32_t> id = node ? add(token_of(*node, true)) : std::nullopt;
    if (key == std::string_view("bos_token")) parts.bos = id;
    if (key == std::string_view("eos_token")) parts.eos = id;
  }
  for (const char* const key : {"additional_special_tokens", "extra_special_tokens"}) {
    const auto list = config.find(key);
    if (!list) continue;
    for (const nlohmann::json& token : tokens_in(*list, path, key)) add(token_of({token, list->where()}, true));
  }
}

}  // namespace mantissa
