#include "tools/text/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

// Puts matches and what lies between them together, as the use of delimiters says.
class Splitter {
 public:
  Splitter(const Piece& piece, DelimiterUse use, PieceSink& sink) : piece_(piece), use_(use), sink_(sink) {}

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
    sink_.take({piece_.text.substr(begin, end - begin), piece_.is_start && begin == 0});
  }
  void flush(size_t end) {
    emit(pending_, end);
    pending_ = end;
  }

  const Piece& piece_;
  const DelimiterUse use_;
  PieceSink& sink_;
  size_t pending_ = 0;
  bool last_was_delimiter_ = false;
};

}  // namespace

const std::vector<TextPattern>& known_patterns() {
  static const std::vector<TextPattern> kPatterns = {
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
  const auto& patterns = known_patterns();
  const auto found = std::find_if(patterns.begin(), patterns.end(), [name](const auto& p) { return p.name == name; });
  return found == patterns.end() ? nullptr : &*found;
}

void SplitPreTokenizer::cut(const Piece& piece, PieceSink& sink) const {
  Splitter splitter(piece, options_.use, sink);
  size_t last = 0;
  pattern_.for_each_match(piece.text, [&](size_t begin, size_t end) {
    if (begin > last) splitter.add(last, begin, options_.inverted);
    splitter.add(begin, end, !options_.inverted);
    last = end;
  });
  if (last < piece.text.size()) splitter.add(last, piece.text.size(), options_.inverted);
  splitter.finish();
}

PreTokenizer::CutBeforeSpace SplitPreTokenizer::cut_before_space() const {
  const bool keeps_matches = options_.use == (options_.inverted ? DelimiterUse::kRemoved : DelimiterUse::kIsolated);
  return options_.is_known && keeps_matches ? CutBeforeSpace::kIsBorder : CutBeforeSpace::kUnknown;
}

void DigitsPreTokenizer::cut(const Piece& piece, PieceSink& sink) const {
  Splitter splitter(piece, use_, sink);
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
}

void PrefixSpacePreTokenizer::cut(const Piece& piece, PieceSink& sink) const {
  if (piece.text.starts_with(' ')) return sink.take(piece);
  std::string text;
  text.reserve(piece.text.size() + 1);
  text += ' ';
  text += piece.text;
  sink.take({text, piece.is_start});
}

void MetaspacePreTokenizer::cut(const Piece& piece, PieceSink& sink) const {
  const std::string& replacement = options_.replacement;
  std::string text;
  for (const char c : piece.text) {
    if (c == ' ') {
      text += replacement;
    } else {
      text += c;
    }
  }
  const bool is_wanted =
      options_.prepend == Prepend::kAlways || (options_.prepend == Prepend::kFirst && piece.is_start);
  if (is_wanted && !text.starts_with(replacement)) text.insert(0, replacement);
  if (!options_.splits) return sink.take({text, piece.is_start});
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(replacement, begin + 1), text.size());
    sink.take({std::string_view(text).substr(begin, end - begin), piece.is_start && begin == 0});
    begin = end;
  }
}

bool PreTokenizerSequence::allows_cut_before_space() const {
  const auto any = [this](PreTokenizer::CutBeforeSpace effect) {
    return std::any_of(parts_.begin(), parts_.end(),
                       [effect](const auto& p) { return p->cut_before_space() == effect; });
  };
  return any(PreTokenizer::CutBeforeSpace::kIsBorder) && !any(PreTokenizer::CutBeforeSpace::kUnknown);
}

void PreTokenizerSequence::cut_from(size_t part, const Piece& piece, PieceSink& sink) const {
  if (part == parts_.size()) return sink.take(piece);
  struct Next final : PieceSink {
    Next(const PreTokenizerSequence& owner, size_t index, PieceSink& last) : sequence(owner), part(index), sink(last) {}
    void take(const Piece& next) override { sequence.cut_from(part, next, sink); }
    const PreTokenizerSequence& sequence;
    size_t part;
    PieceSink& sink;
  } next(*this, part + 1, sink);
  parts_[part]->cut(piece, part + 1 == parts_.size() ? sink : static_cast<PieceSink&>(next));
}

}  // namespace mantissa
