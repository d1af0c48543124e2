#include "tools/text/tokenizer/tokenizer_parts.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>

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

std::unique_ptr<PreTokenizer> read_split(const JsonNode& node) {
  const std::string pattern = pattern_of(node);
  const auto& known = known_patterns();
  return std::make_unique<SplitPreTokenizer>(
      Regex(pattern, RegexDialect::kOniguruma, node.where()),
      SplitPreTokenizer::Options{
          .use = delimiter_use_of(node.at("behavior")),
          .inverted = node.flag("invert", false),
          .is_known = std::any_of(known.begin(), known.end(), [&](const auto& p) { return p.regex == pattern; })});
}

std::unique_ptr<PreTokenizer> read_metaspace(const JsonNode& node) {
  using Prepend = MetaspacePreTokenizer::Prepend;
  MetaspacePreTokenizer::Options options{.replacement = node.at("replacement").text()};
  const auto scheme = node.find("prepend_scheme");
  const std::string name = scheme ? scheme->text() : node.flag("add_prefix_space", true) ? "always" : "never";
  if (name != "always" && name != "never" && name != "first") {
    scheme->fail(fmt::format("expected always, never or first, got '{}'", name));
  }
  if (options.replacement.empty()) node.at("replacement").fail("expected a character, got an empty text");
  options.prepend = name == "always" ? Prepend::kAlways : name == "never" ? Prepend::kNever : Prepend::kFirst;
  options.splits = node.flag("split", true);
  return std::make_unique<MetaspacePreTokenizer>(std::move(options));
}

}  // namespace

void read_normalizers(const std::optional<JsonNode>& normalizer, NormalizerSequence& out) {
  using Form = UnicodeNormalizer::Form;
  if (!normalizer) return;
  for_each_part(*normalizer, "normalizers", [&](const JsonNode& node) {
    constexpr std::pair<std::string_view, Form> kForms[] = {
        {"NFC", Form::kNfc}, {"NFD", Form::kNfd}, {"NFKC", Form::kNfkc}, {"NFKD", Form::kNfkd}};
    const std::string& type = node.at("type").text();
    const auto* const form =
        std::find_if(std::begin(kForms), std::end(kForms), [&](const auto& f) { return f.first == type; });
    if (form != std::end(kForms)) {
      out.add(std::make_unique<UnicodeNormalizer>(form->second));
    } else if (type == "Prepend") {
      out.add(std::make_unique<PrependNormalizer>(node.at("prepend").text()));
    } else if (type == "Replace") {
      out.add(std::make_unique<ReplaceNormalizer>(Regex(pattern_of(node), RegexDialect::kOniguruma, node.where()),
                                                  node.at("content").text()));
    } else {
      refuse(node, "NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
    }
  });
}

void read_pre_tokenizers(const std::optional<JsonNode>& pre_tokenizer, PreTokenizerSequence& out, bool& by_bytes) {
  by_bytes = false;
  if (!pre_tokenizer) return;
  for_each_part(*pre_tokenizer, "pretokenizers", [&](const JsonNode& node) {
    const std::string& type = node.at("type").text();
    if (by_bytes)
      node.fail(fmt::format("'{}' behind ByteLevel is not supported; ByteLevel must be the last one", type));
    if (type == "ByteLevel") {
      by_bytes = true;
      if (node.flag("add_prefix_space", true)) out.add(std::make_unique<PrefixSpacePreTokenizer>());
      if (node.flag("use_regex", true)) {
        out.add(std::make_unique<SplitPreTokenizer>(
            Regex(std::string(find_pattern("gpt2")->regex), RegexDialect::kOniguruma, node.where()),
            SplitPreTokenizer::Options{.is_known = true}));
      }
    } else if (type == "Split") {
      out.add(read_split(node));
    } else if (type == "Digits") {
      out.add(std::make_unique<DigitsPreTokenizer>(node.flag("individual_digits", false) ? DelimiterUse::kIsolated
                                                                                         : DelimiterUse::kContiguous));
    } else if (type == "Metaspace") {
      out.add(read_metaspace(node));
    } else {
      refuse(node, "ByteLevel, Digits, Metaspace, Sequence, Split");
    }
  });
}

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

TokenDecoder::TokenDecoder(const std::optional<JsonNode>& decoder, bool by_bytes, const JsonNode& root) {
  if (!decoder) {  // bytes can only be meant as bytes
    if (!by_bytes)
      root.fail("decoder: expected how tokens are joined, such as Metaspace or a Sequence with Fuse, got null");
    by_bytes_ = true;
    return;
  }
  for_each_part(*decoder, "decoders", [this](const JsonNode& node) { read(node); });
}

void TokenDecoder::read(const JsonNode& decoder) {
  const std::string& type = decoder.at("type").text();
  if (type == "ByteLevel") {
    by_bytes_ = true;
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    is_fused_ = true;
  } else if (type == "Replace") {
    replacements_.emplace_back(Regex(pattern_of(decoder), RegexDialect::kOniguruma, decoder.where()),
                               decoder.at("content").text());
  } else if (type == "Metaspace") {
    const auto scheme = decoder.find("prepend_scheme");
    start_.drops_spaces = scheme ? scheme->text() != "never" : decoder.flag("add_prefix_space", true);
    replacements_.emplace_back(
        Regex(escaped(decoder.at("replacement").text()), RegexDialect::kOniguruma, decoder.where()), " ");
  } else if (type == "Strip") {
    const auto& value = decoder.object();
    if (!is_fused_ || value.value("content", nlohmann::json()) != " " || value.value("stop", nlohmann::json()) != 0) {
      decoder.fail("only spaces at the start are stripped, behind Fuse: content ' ' and stop 0");
    }
    start_.strips_spaces = decoder.at("start").id();
  } else {
    refuse(decoder, "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
  }
}

std::string TokenDecoder::text_of(std::string_view token) const {
  if (byte_fallback_ && token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) {
    unsigned byte = 0;
    const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
    if (error == std::errc() && end == token.data() + 5) return std::string(1, static_cast<char>(byte));
  }
  std::string storage, text(token);
  for (const ReplaceNormalizer& replacement : replacements_) text = std::string(replacement.apply(text, storage));
  if (by_bytes_) {
    std::string bytes;
    if (bytes_of_chars(text, bytes)) return bytes;
  }
  return text;
}

}  // namespace mantissa
