#include "tools/text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

// Hands out matches and what lies between them, put together as the use of delimiters says. `for_each_match(f)` calls
// f(begin, end) for each match. `inverted`: the matches are no delimiters.
template <typename ForEachMatch>
void split(const Piece& piece, DelimiterUse use, bool inverted, const PieceSink& sink,
           const ForEachMatch& for_each_match) {
  size_t pending = 0, last = 0;  // what was not handed out begins here; the last match ended here
  bool last_was_delimiter = false;
  const auto emit_to = [&](size_t end) {
    if (pending < end) sink({piece.text.substr(pending, end - pending), piece.is_start && pending == 0});
    pending = end;
  };
  // The parts follow each other and cover the piece.
  const auto add = [&](size_t begin, size_t end, bool is_delimiter) {
    const bool begins = use == DelimiterUse::kMergedWithPrevious  // a second delimiter in a row stands alone
                            ? !is_delimiter || last_was_delimiter
                            : use == DelimiterUse::kMergedWithNext ? is_delimiter || !last_was_delimiter
                              : use == DelimiterUse::kContiguous   ? is_delimiter != last_was_delimiter
                                                                   : true;
    if (begins) emit_to(begin);
    if (use == DelimiterUse::kRemoved && is_delimiter) pending = end;
    last_was_delimiter = is_delimiter;
  };
  for_each_match([&](size_t begin, size_t end) {
    if (last < begin) add(last, begin, inverted);
    add(begin, end, !inverted);
    last = end;
  });
  if (last < piece.text.size()) add(last, piece.text.size(), inverted);
  emit_to(piece.text.size());
}

}  // namespace

std::span<const TextPattern> known_patterns() {
  static constexpr TextPattern kPatterns[] = {
      {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
      {"llama3", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
                 R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"qwen", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
               R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"qwen3_6", R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)"
                  R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {"cl100k", R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$)"
                 R"(|\s*[\r\n]|\s+(?!\S)|\s)"},
      {"o200k", R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
  };
  return kPatterns;
}

const TextPattern* find_pattern(std::string_view name) {
  const auto found = std::ranges::find(known_patterns(), name, &TextPattern::name);
  return found == known_patterns().end() ? nullptr : &*found;
}

PreTokenizer split_pre_tokenizer(const Regex& pattern, const SplitOptions& options) {
  const bool keeps_matches = options.use == (options.inverted ? DelimiterUse::kRemoved : DelimiterUse::kIsolated);
  const auto cut = [pattern, options](const Piece& piece, const PieceSink& sink) {
    split(piece, options.use, options.inverted, sink,
          [&](const auto& match) { pattern.for_each_match(piece.text, match); });
  };
  return {cut, options.is_known && keeps_matches ? CutBeforeSpace::kIsBorder : CutBeforeSpace::kUnknown};
}

PreTokenizer digits_pre_tokenizer(DelimiterUse use) {
  const auto cut = [use](const Piece& piece, const PieceSink& sink) {
    split(piece, use, false, sink, [&](const auto& match) {
      for (size_t at = 0, bytes = 0; at < piece.text.size(); at += bytes) {
        const TextChar next = first_char(piece.text.substr(at));
        bytes = next.bytes;
        const bool is_digit = next.code < 0x80 ? next.code >= '0' && next.code <= '9' : is_numeric(next.code);
        if (is_digit) match(at, at + bytes);
      }
    });
  };
  return {cut, CutBeforeSpace::kAddsBorder};
}

PreTokenizer prefix_space_pre_tokenizer() {
  const auto cut = [](const Piece& piece, const PieceSink& sink) {
    if (piece.text.starts_with(' ')) return sink(piece);
    const std::string text = " " + std::string(piece.text);
    sink({text, piece.is_start});
  };
  return {cut, CutBeforeSpace::kAddsBorder};
}

PreTokenizer metaspace_pre_tokenizer(const MetaspaceOptions& options) {
  const auto cut = [options](const Piece& piece, const PieceSink& sink) {
    using Prepend = MetaspaceOptions::Prepend;
    const std::string& replacement = options.replacement;
    std::string text;
    for (const char c : piece.text) {
      if (c == ' ') {
        text += replacement;
      } else {
        text += c;
      }
    }
    const bool is_wanted =
        options.prepend == Prepend::kAlways || (options.prepend == Prepend::kFirst && piece.is_start);
    if (is_wanted && !text.starts_with(replacement)) text.insert(0, replacement);
    if (!options.splits) return sink({text, piece.is_start});
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(replacement, begin + 1), text.size());
      sink({std::string_view(text).substr(begin, end - begin), piece.is_start && begin == 0});
      begin = end;
    }
  };
  return {cut, options.splits ? CutBeforeSpace::kIsBorder : CutBeforeSpace::kUnknown};
}

void cut(std::span<const PreTokenizer> pre_tokenizers, const Piece& piece, const PieceSink& sink) {
  if (pre_tokenizers.empty()) return sink(piece);
  if (pre_tokenizers.size() == 1) return pre_tokenizers[0].cut(piece, sink);
  const auto next = [&](const Piece& part) { cut(pre_tokenizers.subspan(1), part, sink); };
  pre_tokenizers[0].cut(piece, std::ref(next));  // a reference needs no memory
}

bool allows_cut_before_space(std::span<const PreTokenizer> pre_tokenizers) {
  const auto count = [&](CutBeforeSpace effect) {
    return std::ranges::count(pre_tokenizers, effect, &PreTokenizer::cut_before_space);
  };
  return count(CutBeforeSpace::kIsBorder) > 0 && count(CutBeforeSpace::kUnknown) == 0;
}

}  // namespace mantissa
