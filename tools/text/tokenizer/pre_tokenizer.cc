#include "tools/text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

// Puts matches and what lies between them together, as the use of delimiters says.
class Splitter {
 public:
  Splitter(const Piece& piece, DelimiterUse use, const PieceSink& sink) : piece_(piece), use_(use), sink_(sink) {}

  // A delimiter or not; the parts follow each other and cover the piece.
  void add(size_t begin, size_t end, bool is_delimiter) {
    switch (use_) {
      case DelimiterUse::kRemoved:
        if (!is_delimiter) emit(begin, end);
        break;
      case DelimiterUse::kIsolated:
        emit(begin, end);
        break;
      case DelimiterUse::kMergedWithPrevious:  // a second delimiter in a row stands alone
        if (!is_delimiter || last_was_delimiter_) flush(begin);
        break;
      case DelimiterUse::kMergedWithNext:
        if (is_delimiter || !last_was_delimiter_) flush(begin);
        break;
      case DelimiterUse::kContiguous:
        if (is_delimiter != last_was_delimiter_) flush(begin);
        break;
    }
    last_was_delimiter_ = is_delimiter;
  }
  void finish() {
    if (use_ != DelimiterUse::kRemoved && use_ != DelimiterUse::kIsolated) flush(piece_.text.size());
  }

 private:
  void emit(size_t begin, size_t end) {
    if (begin == end) return;
    sink_({piece_.text.substr(begin, end - begin), piece_.is_start && begin == 0});
  }
  void flush(size_t end) {
    emit(pending_, end);
    pending_ = end;
  }

  const Piece& piece_;
  const DelimiterUse use_;
  const PieceSink& sink_;
  size_t pending_ = 0;
  bool last_was_delimiter_ = false;
};

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
    Splitter splitter(piece, options.use, sink);
    size_t last = 0;
    pattern.for_each_match(piece.text, [&](size_t begin, size_t end) {
      if (begin > last) splitter.add(last, begin, options.inverted);
      splitter.add(begin, end, !options.inverted);
      last = end;
    });
    if (last < piece.text.size()) splitter.add(last, piece.text.size(), options.inverted);
    splitter.finish();
  };
  return {cut, options.is_known && keeps_matches ? CutBeforeSpace::kIsBorder : CutBeforeSpace::kUnknown};
}

PreTokenizer digits_pre_tokenizer(DelimiterUse use) {
  const auto cut = [use](const Piece& piece, const PieceSink& sink) {
    Splitter splitter(piece, use, sink);
    size_t last = 0;
    for (size_t at = 0, bytes = 0; at < piece.text.size(); at += bytes) {
      const TextChar next = first_char(piece.text.substr(at));
      bytes = next.bytes;
      const bool is_digit = next.code < 0x80 ? next.code >= '0' && next.code <= '9' : is_numeric(next.code);
      if (!is_digit) continue;
      if (at > last) splitter.add(last, at, false);
      splitter.add(at, at + bytes, true);
      last = at + bytes;
    }
    if (last < piece.text.size()) splitter.add(last, piece.text.size(), false);
    splitter.finish();
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
