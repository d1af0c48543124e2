#include "tools/text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8  // NOLINT(cppcoreguidelines-macro-usage): the header asks for it
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <new>

#include <fmt/core.h>

#include "core/base/check.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace {

// PCRE2's \s also holds U+180E, which is no space since Unicode 6.3.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
    "\\x{202f}\\x{205f}\\x{3000}";

// The same pattern for PCRE2. Refuses what other engines read otherwise.
std::string translated(const std::string& pattern, RegexDialect dialect, const std::string& where) {
  const auto refuse = [&](std::string_view part, std::string_view reason) {
    throw DataError("{}: the pattern '{}' contains '{}', {}", where, pattern, part, reason);
  };
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\' && next != '\0') {
      ++i;
      if (next == 's') {
        out += in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
      } else if (next == 'S' && !in_class) {
        out += fmt::format("[^{}]", kSpaces);
      } else {
        if ((next == 'h' || next == 'H') && dialect == RegexDialect::kOniguruma) {
          refuse(fmt::format("\\{}", next), "a hexadecimal digit in tokenizer.json; write [0-9a-fA-F]");
        }
        if (std::string_view("wWbB").find(next) != std::string_view::npos) {
          refuse(fmt::format("\\{}", next), "whose letters differ between engines; write [\\p{L}\\p{M}\\p{Nd}\\p{Pc}]");
        }
        // With the braces of \p{L} and \x{20}, which are no repetition.
        const size_t end = i + 1 < pattern.size() && pattern[i + 1] == '{' ? pattern.find('}', i) : i;
        const size_t last = std::min(end, pattern.size() - 1);
        out += c;
        out.append(pattern, i, last - i + 1);
        i = last;
      }
      continue;
    }
    if (in_class && c == '&' && next == '&') refuse("&&", "an intersection of classes, which is not supported");
    if (in_class && c == '[' && next != ':') refuse("[", "a class within a class, which is not supported; write \\[");
    if (in_class && c == '[') {
      const std::string_view name = std::string_view(pattern).substr(i, pattern.find(']', i) + 1 - i);
      if (name != "[:digit:]" && name != "[:cntrl:]") {
        refuse(name, "which holds other characters in other engines; write a property such as \\p{L}");
      }
      out += name;
      i += name.size() - 1;
      continue;
    }
    if (!in_class && c == '}' && next == '+' && dialect == RegexDialect::kOniguruma) {
      refuse("}+", "which repeats the repetition in tokenizer.json and is possessive elsewhere; leave out the '+'");
    }
    out += c;
    if (!in_class && c == '[') {
      in_class = true;
      if (next == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];  // a bracket first is a member
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return out;
}

}  // namespace

Regex::Regex(const std::string& pattern, RegexDialect dialect, const std::string& where) : where_(where) {
  const std::string text = translated(pattern, dialect, where);
  // In tokenizer.json, ^ and $ stand at lines; in tiktoken at the ends of the text.
  const uint32_t anchors = dialect == RegexDialect::kOniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | anchors, &error, &offset, context.get()),
              pcre2_code_free);
  if (code_ == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    throw DataError("{}: the pattern '{}' is no regular expression: {}", where, pattern,
                    reinterpret_cast<const char*>(message.data()));
  }
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);  // where the system forbids code, matches are only slower
}

void Regex::search(std::string_view text, const std::function<void(size_t begin, size_t end)>& f) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
  if (match == nullptr) throw std::bad_alloc();
  for (size_t from = 0; from <= text.size();) {
    const auto found_with = [&](uint32_t options) {
      return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | options, match.get(), nullptr);
    };
    int found = found_with(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = found_with(PCRE2_NO_JIT);  // it takes its memory from the heap
    if (found == PCRE2_ERROR_NOMATCH) return;
    require<DataError>(found > 0, "{}: the pattern needs too much memory or time on this text (PCRE2 error {})", where_,
                       found);
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match.get());
    const size_t begin = ends[0], end = ends[1];
    f(begin, end);
    from = end;
    if (begin == end) from += end < text.size() ? first_char(text.substr(end)).bytes : 1;
  }
}

}  // namespace mantissa
