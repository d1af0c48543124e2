#include "tools/text/tokenizer/pre_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

utf8proc_option_t options_of(NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool is_compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (is_compatible ? UTF8PROC_COMPAT : 0));
}

void append_normalized(std::string_view text, utf8proc_option_t options, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t count = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                              static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
  if (count < 0) throw std::bad_alloc();  // valid UTF-8 has no other reason
  out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(count));
  std::free(mapped);
}

std::string_view in_normal_form(NormalForm form, std::string_view text, std::string& storage) {
  // Most characters are inert. The others are normalized in runs, each together with the character before it: the run's
  // first character may combine with it.
  const bool keeps_latin = form == NormalForm::kNfc;
  const auto stays = [keeps_latin](char32_t code) { return is_inert(code) || (keeps_latin && code < 0x300); };
  const utf8proc_option_t options = options_of(form);
  size_t copied = 0, before = 0, at = 0;  // `before`: the start of the character before `at`
  bool is_changed = false;
  while (at < text.size()) {
    const TextChar next = first_char(text.substr(at));
    if (stays(next.code)) {
      before = at;
      at += next.bytes;
      continue;
    }
    size_t end = at + next.bytes;
    for (size_t bytes = 0; end < text.size(); end += bytes) {
      const TextChar following = first_char(text.substr(end));
      if (stays(following.code)) break;
      bytes = following.bytes;
    }
    if (!is_changed) storage.clear();
    is_changed = true;
    storage.append(text.substr(copied, before - copied));
    append_normalized(text.substr(before, end - before), options, storage);
    copied = before = at = end;
  }
  if (!is_changed) return text;
  storage.append(text.substr(copied));
  return storage;
}

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

// NFC leaves U+0000 to U+02FF as they are; the compatible and the decomposed forms leave ASCII.
bool is_inert(char32_t code) {
  return code < 0x80 || (code >= 0x0410 && code <= 0x0418) || (code >= 0x041A && code <= 0x0438) ||
         (code >= 0x043A && code <= 0x044F) ||                                          // Cyrillic without й
         (code >= 0x05D0 && code <= 0x05EA) ||                                          // Hebrew
         (code >= 0x0E01 && code <= 0x0E30) ||                                          // Thai consonants
         (code >= 0x2012 && code <= 0x2016) || (code >= 0x2018 && code <= 0x201E) ||    // quotation marks
         (code >= 0x3001 && code <= 0x3029) ||                                          // CJK punctuation
         (code >= 0x3400 && code <= 0x4DBF) || (code >= 0x4E00 && code <= 0x9FFF) ||    // CJK
         (code >= 0x1F300 && code <= 0x1F6FF) || (code >= 0x1F900 && code <= 0x1F9FF);  // emoji
}

Normalizer unicode_normalizer(NormalForm form) {
  return [form](std::string_view text, std::string& storage) { return in_normal_form(form, text, storage); };
}

Normalizer prepend_normalizer(std::string prefix) {
  return [prefix = std::move(prefix)](std::string_view text, std::string& storage) -> std::string_view {
    if (text.empty()) return text;
    storage.assign(prefix);
    storage.append(text);
    return storage;
  };
}

Normalizer replace_normalizer(Regex pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](std::string_view text,
                                                                      std::string& storage) -> std::string_view {
    size_t copied = 0;
    bool is_changed = false;
    pattern.for_each_match(text, [&](size_t begin, size_t end) {
      if (!is_changed) storage.clear();
      is_changed = true;
      storage.append(text.substr(copied, begin - copied));
      storage.append(content);
      copied = end;
    });
    if (!is_changed) return text;
    storage.append(text.substr(copied));
    return storage;
  };
}

std::string_view normalized(std::span<const Normalizer> normalizers, std::string_view text, std::string& storage) {
  std::string other;
  for (const Normalizer& normalizer : normalizers) {
    const std::string_view result = normalizer(text, other);
    if (result.data() != text.data() || result.size() != text.size()) {
      storage.swap(other);
      text = storage;
    }
  }
  return text;
}

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
    for (const char& c : piece.text) text += c == ' ' ? std::string_view(replacement) : std::string_view(&c, 1);
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
