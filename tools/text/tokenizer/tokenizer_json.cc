#include "tools/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "core/io/json_node.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

// Calls f for each of the parts of a Sequence, whose key is `list`, or for the node itself.
template <typename F>
void for_each_part(const JsonNode& node, std::string_view list, const F& f, int depth = 0) {
  constexpr int kMostDepth = 8;
  if (node.at("type").text() != "Sequence") return f(node);
  if (depth == kMostDepth) node.fail("too many sequences within each other");
  const JsonNode parts = node.at(list);
  for (size_t i = 0; i < parts.array().size(); ++i) for_each_part(parts.at(i), list, f, depth + 1);
}

[[noreturn]] void refuse(const JsonNode& node, std::string_view supported) {
  node.fail(fmt::format("the type '{}' is not supported; supported: {}", node.at("type").text(), supported));
}

// A pattern that matches the text.
std::string escaped(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}#-&").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

// {"String": "text"} or {"Regex": "pattern"}.
std::string pattern_of(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  const auto regex = pattern.find("Regex");
  return regex ? regex->text() : escaped(pattern.at("String").text());
}

Regex regex(const std::string& pattern, const JsonNode& node) {
  return {pattern, RegexDialect::kOniguruma, node.where()};
}

Normalizer read_replace(const JsonNode& node) {
  return replace_normalizer(regex(pattern_of(node), node), node.at("content").text());
}

DelimiterUse delimiter_use_of(const JsonNode& behavior) {
  constexpr std::pair<std::string_view, DelimiterUse> kNames[] = {
      {"Removed", DelimiterUse::kRemoved},
      {"Isolated", DelimiterUse::kIsolated},
      {"MergedWithPrevious", DelimiterUse::kMergedWithPrevious},
      {"MergedWithNext", DelimiterUse::kMergedWithNext},
      {"Contiguous", DelimiterUse::kContiguous}};
  for (const auto& [name, use] : kNames) {
    if (behavior.text() == name) return use;
  }
  behavior.fail(fmt::format("expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, got '{}'",
                            behavior.text()));
}

PreTokenizer read_split(const JsonNode& node) {
  const std::string pattern = pattern_of(node);
  const bool is_known = std::ranges::find(known_patterns(), pattern, &TextPattern::regex) != known_patterns().end();
  return split_pre_tokenizer(
      regex(pattern, node),
      {.use = delimiter_use_of(node.at("behavior")), .inverted = node.flag("invert", false), .is_known = is_known});
}

PreTokenizer read_metaspace(const JsonNode& node) {
  using Prepend = MetaspaceOptions::Prepend;
  MetaspaceOptions options{.replacement = node.at("replacement").text()};
  const auto scheme = node.find("prepend_scheme");
  const std::string name = scheme ? scheme->text() : node.flag("add_prefix_space", true) ? "always" : "never";
  if (name != "always" && name != "never" && name != "first") {
    scheme->fail(fmt::format("expected always, never or first, got '{}'", name));
  }
  if (options.replacement.empty()) node.at("replacement").fail("expected a character, got an empty text");
  options.prepend = name == "always" ? Prepend::kAlways : name == "never" ? Prepend::kNever : Prepend::kFirst;
  options.splits = node.flag("split", true);
  return metaspace_pre_tokenizer(options);
}

void read_normalizers(const std::optional<JsonNode>& normalizer, std::vector<Normalizer>& out) {
  if (!normalizer) return;
  for_each_part(*normalizer, "normalizers", [&](const JsonNode& node) {
    constexpr std::pair<std::string_view, NormalForm> kForms[] = {
        {"NFC", NormalForm::kNfc}, {"NFD", NormalForm::kNfd}, {"NFKC", NormalForm::kNfkc}, {"NFKD", NormalForm::kNfkd}};
    const std::string& type = node.at("type").text();
    const auto* const form = std::ranges::find(kForms, type, &std::pair<std::string_view, NormalForm>::first);
    if (form != std::end(kForms)) {
      out.push_back(unicode_normalizer(form->second));
    } else if (type == "Prepend") {
      out.push_back(prepend_normalizer(node.at("prepend").text()));
    } else if (type == "Replace") {
      out.push_back(read_replace(node));
    } else {
      refuse(node, "NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
    }
  });
}

// `by_bytes`: ByteLevel is among them, and the model's symbols are bytes.
void read_pre_tokenizers(const std::optional<JsonNode>& pre_tokenizer, TokenizerParts& parts, bool& by_bytes) {
  std::vector<PreTokenizer>& out = parts.pre_tokenizers;
  if (!pre_tokenizer) return;
  for_each_part(*pre_tokenizer, "pretokenizers", [&](const JsonNode& node) {
    const std::string& type = node.at("type").text();
    if (by_bytes) node.fail(fmt::format("'{}' after ByteLevel is not supported; ByteLevel must be the last one", type));
    if (type == "ByteLevel") {
      by_bytes = true;
      if (parts.adds_prefix_space.value_or(node.flag("add_prefix_space", true))) {
        out.push_back(prefix_space_pre_tokenizer());
      }
      if (node.flag("use_regex", true)) {
        out.push_back(split_pre_tokenizer(regex(std::string(find_pattern("gpt2")->regex), node)));
      }
    } else if (type == "Split") {
      out.push_back(read_split(node));
    } else if (type == "Digits") {
      out.push_back(digits_pre_tokenizer(node.flag("individual_digits", false) ? DelimiterUse::kIsolated
                                                                               : DelimiterUse::kContiguous));
    } else if (type == "Metaspace") {
      out.push_back(read_metaspace(node));
    } else {
      refuse(node, "ByteLevel, Digits, Metaspace, Sequence, Split");
    }
  });
}

// The ids before and after a text, of a vocabulary of `vocab_size`.
void read_template(const std::optional<JsonNode>& post_processor, int64_t vocab_size, std::vector<int32_t>& before,
                   std::vector<int32_t>& after) {
  if (!post_processor) return;
  for_each_part(*post_processor, "processors", [&](const JsonNode& node) {
    const std::string& type = node.at("type").text();
    if (type == "ByteLevel") return;  // about offsets only
    if (type != "TemplateProcessing") refuse(node, "ByteLevel, Sequence, TemplateProcessing");
    const JsonNode parts = node.at("single");
    bool is_after = false;
    for (size_t i = 0; i < parts.array().size(); ++i) {
      if (parts.at(i).find("Sequence")) {
        is_after = true;
        continue;
      }
      const JsonNode token = parts.at(i).at("SpecialToken").at("id");
      const JsonNode ids = node.at("special_tokens").at(token.text()).at("ids");
      for (size_t k = 0; k < ids.array().size(); ++k) {
        const int32_t id = ids.at(k).id();
        if (id >= vocab_size) ids.at(k).fail(fmt::format("token {} is not in the vocabulary", id));
        (is_after ? after : before).push_back(id);
      }
    }
  });
}

// Makes a token's text out of its spelling in the vocabulary.
class TokenDecoder {
 public:
  TokenDecoder(const std::optional<JsonNode>& decoder, bool by_bytes, const JsonNode& root) {
    if (!decoder) {  // bytes can only be meant as bytes
      if (!by_bytes)
        root.fail("decoder: expected how tokens are joined, such as Metaspace or a Sequence with Fuse, got null");
      by_bytes_ = true;
      return;
    }
    for_each_part(*decoder, "decoders", [this](const JsonNode& node) { read(node); });
  }

  std::string text_of(std::string_view token) const {
    if (byte_fallback_ && token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) {
      unsigned byte = 0;
      const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
      if (error == std::errc() && end == token.data() + 5) return std::string(1, static_cast<char>(byte));
    }
    std::string storage;
    const std::string text(normalized(replacements_, token, storage));
    if (by_bytes_) {
      std::string bytes;
      if (bytes_of_chars(text, bytes)) return bytes;
    }
    return text;
  }
  const TokenTexts::Start& start() const { return start_; }

 private:
  void read(const JsonNode& decoder) {
    const std::string& type = decoder.at("type").text();
    if (type == "ByteLevel") {
      by_bytes_ = true;
    } else if (type == "ByteFallback") {
      byte_fallback_ = true;
    } else if (type == "Fuse") {
      is_fused_ = true;
    } else if (type == "Replace") {
      replacements_.push_back(read_replace(decoder));
    } else if (type == "Metaspace") {
      const auto scheme = decoder.find("prepend_scheme");
      start_.drops_spaces = scheme ? scheme->text() != "never" : decoder.flag("add_prefix_space", true);
      replacements_.push_back(replace_normalizer(regex(escaped(decoder.at("replacement").text()), decoder), " "));
    } else if (type == "Strip") {
      const auto& value = decoder.object();
      if (!is_fused_ || value.value("content", nlohmann::json()) != " " || value.value("stop", nlohmann::json()) != 0) {
        decoder.fail("only spaces at the start are stripped, after Fuse: content ' ' and stop 0");
      }
      start_.strips_spaces = decoder.at("start").id();
    } else {
      refuse(decoder, "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
    }
  }

  bool by_bytes_ = false, byte_fallback_ = false, is_fused_ = false;
  std::vector<Normalizer> replacements_;
  TokenTexts::Start start_;
};

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
    AddedToken token = read_added_token(entry, false);
    token.id = entry.at("id").id();
    if (const auto known = vocab.ids.find(token.content); known && *known != token.id) {
      entry.fail(fmt::format("the token '{}' has id {} here and {} in model.vocab", token.content, token.id, *known));
    }
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

// The decoded texts of the tokens in model.vocab and added_tokens.
TokenTexts read_texts(const Vocab& vocab, const std::vector<AddedToken>& added, const TokenDecoder& decoder,
                      const std::vector<Normalizer>& normalizers) {
  TokenTexts texts;
  texts.set_start(decoder.start());
  for (const auto& [token, id] : vocab.tokens) texts.set(id, decoder.text_of(token), false);
  for (const AddedToken& token : added) {
    std::string storage;
    const std::string_view content = token.normalized ? normalized(normalizers, token.content, storage) : token.content;
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

}  // namespace

AddedToken read_added_token(const JsonNode& node, bool is_special) {
  const bool special = is_special || node.flag("special", false);
  return {.content = node.at("content").text(),
          .special = special,
          .normalized = node.flag("normalized", !special),
          .single_word = node.flag("single_word", false),
          .lstrip = node.flag("lstrip", false),
          .rstrip = node.flag("rstrip", false)};
}

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

  TokenizerParts parts{.kind = {}, .texts = {}, .path = path};
  bool by_bytes = false;
  read_normalizers(root.find("normalizer"), parts.normalizers);
  parts.added_tokens = read_added_tokens(root, vocab);
  const int32_t last = std::ranges::max(vocab.tokens, {}, &std::pair<std::string_view, int32_t>::second).second;
  add_configured_tokens(std::filesystem::path(path).parent_path().string(), vocab.ids, last + 1, parts);
  read_pre_tokenizers(root.find("pre_tokenizer"), parts, by_bytes);
  parts.texts =
      read_texts(vocab, parts.added_tokens, TokenDecoder(root.find("decoder"), by_bytes, root), parts.normalizers);
  parts.bpe = read_bpe(model, vocab, by_bytes);
  read_template(root.find("post_processor"), parts.texts.size(), parts.ids_before, parts.ids_after);
  parts.kind = by_bytes ? "byte-level BPE" : "BPE of characters";
  if (parts.splits_special_tokens) parts.kind += " (special tokens in texts are plain text)";
  if (!by_bytes && parts.pre_tokenizers.empty()) {
    // As sentencepiece has it, the text is one word. Where no merge crosses the start of a run of spaces, cutting there
    // changes nothing, and words are found in the cache.
    const std::string space = "\u2581";
    if (parts.bpe->find(space) && !parts.bpe->merges_across(space)) {
      parts.pre_tokenizers.push_back(
          split_pre_tokenizer(Regex("\u2581*[^\u2581]+|\u2581+", RegexDialect::kOniguruma, path)));
      parts.space = space;
    }
  }
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace mantissa
