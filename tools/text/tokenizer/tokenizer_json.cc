#include "tools/text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/io/json_node.h"
#include "tools/text/tokenizer/bpe_tokenizer.h"
#include "tools/text/tokenizer/tokenizer_parts.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

// model.vocab; the texts are the file's.
struct Vocab {
  explicit Vocab(size_t count) : ids(count) { tokens.reserve(count); }
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  TokenMap ids;
};

// The two tokens of a merge: "a b" or ["a", "b"]; empty texts if it is neither.
std::pair<std::string_view, std::string_view> merge_parts(const nlohmann::json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  if (!merge.is_string()) return {};
  const std::string_view text = merge.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) return {};
  return {text.substr(0, space), text.substr(space + 1)};
}

// Files have hundreds of thousands of merges: a JsonNode is made only for a refused merge.
std::vector<BpeMerge> read_merges(const JsonNode& merges, const Vocab& vocab) {
  std::vector<BpeMerge> out;
  out.reserve(merges.array().size());
  std::string whole;
  for (const nlohmann::json& merge : merges.value()) {
    const auto [left, right] = merge_parts(merge);
    if (left.empty() || right.empty()) merges.at(out.size()).expect(false, "two tokens: \"a b\" or [\"a\", \"b\"]");
    whole.assign(left).append(right);
    const auto id_of = [&](std::string_view token) {
      const auto id = vocab.ids.find(token);
      if (!id) merges.at(out.size()).fail(fmt::format("the token '{}' is not in model.vocab", token));
      return *id;
    };
    out.push_back({id_of(left), id_of(right), id_of(whole)});
  }
  return out;
}

std::vector<AddedToken> read_added_tokens(const JsonNode& root, const Vocab& vocab) {
  std::vector<AddedToken> tokens;
  const auto list = root.find("added_tokens");
  for (size_t i = 0; list && i < list->array().size(); ++i) {
    const JsonNode entry = list->at(i);
    AddedToken token{.content = entry.at("content").text(),
                     .id = entry.at("id").id(),
                     .special = entry.flag("special", false),
                     .normalized = entry.flag("normalized", false),
                     .single_word = entry.flag("single_word", false),
                     .lstrip = entry.flag("lstrip", false),
                     .rstrip = entry.flag("rstrip", false)};
    if (const auto known = vocab.ids.find(token.content); known && *known != token.id) {
      entry.fail(fmt::format("the token '{}' has id {} here and {} in model.vocab", token.content, token.id, *known));
    }
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

// The decoded texts of the tokens in model.vocab and added_tokens.
TokenTexts read_texts(const Vocab& vocab, const std::vector<AddedToken>& added, const TokenDecoder& decoder,
                      const NormalizerSequence& normalizer) {
  TokenTexts texts;
  texts.set_start(decoder.start());
  for (const auto& [token, id] : vocab.tokens) texts.set(id, decoder.text_of(token), false);
  for (const AddedToken& token : added) {
    std::string storage;
    const std::string_view content = token.normalized ? normalizer.apply(token.content, storage) : token.content;
    texts.set(token.id, decoder.text_of(content), token.special);
  }
  return texts;
}

std::unique_ptr<Bpe> read_bpe(const JsonNode& model, const Vocab& vocab, bool by_bytes) {
  BpeOptions options;
  options.merges = read_merges(model.at("merges"), vocab);
  options.by_bytes = by_bytes;
  options.tokens.reserve(vocab.tokens.size());
  std::string bytes;
  for (const auto& [token, id] : vocab.tokens) {
    if (!by_bytes) {
      options.tokens.emplace_back(token, id);
    } else if (bytes_of_chars(token, bytes)) {  // words never contain the others
      options.tokens.emplace_back(bytes, id);
    }
  }
  options.ignore_merges = model.flag("ignore_merges", false);
  options.byte_fallback = model.flag("byte_fallback", false);
  options.fuse_unknown = model.flag("fuse_unk", false);
  if (const auto unknown = model.find("unk_token")) {
    options.unknown = vocab.ids.find(unknown->text());
    if (!options.unknown && !by_bytes) {  // where each byte is a token, many files name a missing one
      unknown->fail(fmt::format("the token '{}' is not in model.vocab", unknown->text()));
    }
  }
  for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model.find(key);
    if (affix && !affix->text().empty()) affix->fail(fmt::format("'{}' is not supported; only null is", affix->text()));
  }
  if (const auto dropout = model.find("dropout"); dropout && dropout->value() != 0.0) {
    dropout->fail("merges that are left out at random are not supported; set it to null");
  }
  return std::make_unique<Bpe>(std::move(options));
}

// "bos_token": "<s>", or an object with its content.
std::optional<int32_t> named_token(const JsonNode& config, const char* key, const std::vector<AddedToken>& tokens) {
  const auto entry = config.find(key);
  if (!entry) return std::nullopt;
  const std::string& content = entry->value().is_object() ? entry->at("content").text() : entry->text();
  const auto found = std::find_if(tokens.begin(), tokens.end(), [&](const auto& t) { return t.content == content; });
  return found == tokens.end() ? std::nullopt : std::optional(found->id);
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path) {
  const nlohmann::json json = JsonNode::read(path);
  const JsonNode root(json, path);
  const JsonNode model = root.at("model");
  const auto type = model.find("type");  // old files leave it out
  if (type ? type->text() != "BPE" : !model.value().contains("merges")) {
    model.fail(fmt::format("the type '{}' is not supported; only BPE is", type ? type->text() : "none"));
  }
  const JsonNode tokens = model.at("vocab");
  Vocab vocab(tokens.object().size());
  for (const auto& [token, id] : tokens.value().get_ref<const nlohmann::json::object_t&>()) {
    vocab.tokens.emplace_back(token, JsonNode::is_id(id) ? id.get<int32_t>() : tokens.at(token).id());
    vocab.ids.add(token, vocab.tokens.back().second);
  }
  if (vocab.tokens.empty()) tokens.fail("it has no tokens");

  BpeTokenizerParts parts;
  bool by_bytes = false;
  read_normalizers(root.find("normalizer"), parts.normalizer);
  read_pre_tokenizers(root.find("pre_tokenizer"), parts.pre_tokenizer, by_bytes);
  parts.added_tokens = read_added_tokens(root, vocab);
  parts.texts =
      read_texts(vocab, parts.added_tokens, TokenDecoder(root.find("decoder"), by_bytes, root), parts.normalizer);
  parts.bpe = read_bpe(model, vocab, by_bytes);
  read_template(root.find("post_processor"), parts.texts.size(), parts.ids_before, parts.ids_after);
  parts.kind = by_bytes ? "byte-level BPE" : "BPE of characters";
  if (!by_bytes && parts.pre_tokenizer.empty()) {
    // As sentencepiece has it, the text is one word. Where no merge crosses the start of a run of spaces, cutting there
    // changes nothing, and words are found in the cache.
    const std::string space = "\u2581";
    if (parts.bpe->find(space) && !parts.bpe->merges_across(space)) {
      parts.pre_tokenizer.add(
          std::make_unique<SplitPreTokenizer>(Regex("\u2581*[^\u2581]+|\u2581+", RegexDialect::kOniguruma, path),
                                              SplitPreTokenizer::Options{.is_known = true}));
      parts.space = space;
    }
  }
  std::error_code ignored;
  const std::string config_path = (std::filesystem::path(path).parent_path() / "tokenizer_config.json").string();
  if (std::filesystem::exists(config_path, ignored)) {
    const nlohmann::json config = JsonNode::read(config_path);
    parts.bos = named_token({config, config_path}, "bos_token", parts.added_tokens);
    parts.eos = named_token({config, config_path}, "eos_token", parts.added_tokens);
  }
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace mantissa
