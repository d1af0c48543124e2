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

constexpr std::string_view kNamed[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

// "<s>", or an object with the token and its flags.
AddedToken token_of(const JsonNode& node, bool is_named) {
  return node.value().is_object() ? read_added_token(node, is_named)
                                  : AddedToken{.content = node.text(), .special = true};
}

// The file in its order, for the ids, with two files that older folders have beside it.
nlohmann::ordered_json read_config(const std::filesystem::path& folder, const std::string& path) {
  const auto read = [](const std::string& file) {
    return file_exists(file) ? read_json_object<DataError>(file) : nlohmann::json::object();
  };
  const nlohmann::json sorted = read(path);
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(text_of_file(path).value_or(""), nullptr, false);
  if (!json.is_object()) json = nlohmann::ordered_json(sorted);
  if (json.contains("added_tokens_decoder")) return json;
  json.update(nlohmann::ordered_json(read((folder / "special_tokens_map.json").string())));
  const nlohmann::json ids = read((folder / "added_tokens.json").string());
  for (const auto& [content, id] : ids.items()) json["added_tokens_decoder"][id.dump()]["content"] = content;
  return json;
}

std::map<int32_t, JsonNode> tokens_by_id(const JsonNode& decoder) {
  std::map<int32_t, JsonNode> by_id;
  for (const auto& [key, value] : decoder.object().items()) {
    int32_t id = -1;
    std::from_chars(key.data(), key.data() + key.size(), id);
    decoder.expect(id >= 0, "ids of tokens as keys");
    by_id.emplace(id, decoder.at(key));
  }
  return by_id;
}

// Some classes make their pre-tokenizers anew: tokenizer.json has no say.
std::optional<bool> adds_prefix_space(const JsonNode& config) {
  const auto type = config.find("tokenizer_class");
  for (const char* const name : {"CodeGen", "GPT2", "GPTNeoX", "Qwen2", "Roberta"}) {
    const bool is_anew = type && type->text().starts_with(fmt::format("{}Tokenizer", name));
    if (is_anew) return config.flag("add_prefix_space", false);
  }
  return std::nullopt;
}

}  // namespace

void add_configured_tokens(const std::string& folder, const TokenMap& vocab, int64_t vocab_size,
                           TokenizerParts& parts) {
  const std::string path = (std::filesystem::path(folder) / "tokenizer_config.json").string();
  const nlohmann::ordered_json as_written = read_config(folder, path);
  const nlohmann::json json(as_written);
  const JsonNode config(json, path);
  parts.adds_prefix_space = adds_prefix_space(config);
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
    for (const auto& [id, node] : tokens_by_id(*decoder)) {
      const bool has_flags = node.value().size() > 1;  // added_tokens.json has none
      if (const auto given = add(token_of(node, false), has_flags); given && *given != id) {
        log_warn("{}: the token has id {} here, as in transformers; correct the id or tokenizer.json", node.where(),
                 *given);
      }
    }
  }
  for (const std::string_view key : kNamed) {
    const auto node = config.find(key);
    const std::optional<int32_t> id = node ? add(token_of(*node, true)) : std::nullopt;
    if (key == "bos_token") parts.bos = id;
    if (key == "eos_token") parts.eos = id;
  }
  bool names_own = false;  // such as image_token
  for (const auto& [key, value] : as_written.items()) {
    const bool is_token = key.ends_with("_token") && (value.is_string() || value.contains("__type"));
    if (!is_token || std::ranges::count(kNamed, key) > 0) continue;
    add(token_of({nlohmann::json(value), path + ": " + key}, true));
    names_own = true;
  }
  for (const char* const key : {"model_specific_special_tokens", "additional_special_tokens", "extra_special_tokens"}) {
    const auto list = config.find(key);
    if (!list || (names_own && key == std::string_view("model_specific_special_tokens"))) continue;
    for (const auto& token : as_written.at(key)) add(token_of({nlohmann::json(token), list->where()}, true));
  }
}

}  // namespace mantissa
