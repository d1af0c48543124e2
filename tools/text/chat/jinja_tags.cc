// Rules: the lexer of Jinja 3.1, and https://jinja.palletsprojects.com/templates/#whitespace-control.
#include "tools/text/chat/jinja.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/core.h>

#include "core/base/error.h"
#include "core/base/wrapped_text.h"
#include "tools/text/tokenizer/utf8.h"

namespace mantissa {
namespace jinja_tags_file {
namespace {

using TokenKind = JinjaToken::Kind;
using TagKind = JinjaTag::Kind;

// With line feeds only, and without the last one, as Jinja reads a source.
std::string with_line_feeds(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<JinjaTag> tags() {
    while (at_ < source_.size()) {
      const size_t begin = next_tag();
      std::string_view text = source_.substr(at_, begin - at_);
      if (begin == source_.size()) {
        add(text);
        break;
      }
      const char kind = source_[begin + 1], sign = begin + 2 < source_.size() ? source_[begin + 2] : ' ';
      const bool begins_line = at_ == 0 || source_[at_ - 1] == '\n';
      if (sign == '-') {
        text = without_trailing_space(text);
      } else if (sign != '+' && kind != '{') {  // lstrip_blocks
        const size_t line = text.rfind('\n') + 1;
        if ((line > 0 || begins_line) && without_trailing_space(text.substr(line)).empty()) text = text.substr(0, line);
      }
      add(text);
      at_ = begin + (sign == '-' || sign == '+' ? 3 : 2);
      if (kind == '#') {
        skip_comment(begin);
      } else {
        read_tag(begin, kind);
      }
    }
    return std::move(tags_);
  }

 private:
  std::string_view rest() const { return source_.substr(at_); }

  // Where the next "{{", "{%" or "{#" is.
  size_t next_tag() const {
    size_t begin = source_.find('{', at_);
    while (begin != std::string_view::npos && source_.substr(begin + 1).find_first_of("{%#") != 0) {
      begin = source_.find('{', begin + 1);
    }
    return std::min(begin, source_.size());
  }

  void add(std::string_view text) {
    if (!text.empty()) tags_.push_back({.source = std::string(text)});
  }

  // After a tag: "-" takes all white space, and a tag without sign a line feed unless it is an output.
  void finish(char sign, char kind) {
    if (sign == '-') {
      at_ = source_.size() - without_leading_space(rest()).size();
    } else if (sign != '+' && kind != '{' && rest().starts_with('\n')) {
      ++at_;
    }
  }

  void skip_comment(size_t begin) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) refuse_jinja(source_.substr(begin));
    const char sign = end > at_ ? source_[end - 1] : ' ';
    at_ = end + 2;
    finish(sign, '#');
  }

  void read_tag(size_t begin, char kind) {
    const std::string_view close = kind == '{' ? "}}" : "%}";
    JinjaTag tag{.kind = kind == '{' ? TagKind::kOutput : TagKind::kStatement};
    std::string open;  // the brackets that are due
    while (true) {
      at_ = source_.size() - without_leading_space(rest()).size();
      if (rest().empty()) refuse_jinja(source_.substr(begin));
      const char first = source_[at_];
      const bool has_sign =
          (first == '-' || (first == '+' && kind == '%')) && source_.substr(at_ + 1).starts_with(close);
      if (open.empty() && (has_sign || rest().starts_with(close))) {
        at_ += has_sign ? 3 : 2;
        tag.source = source_.substr(begin, at_ - begin);
        finish(has_sign ? first : ' ', kind);
        break;
      }
      tag.tokens.push_back(token(begin));
      if (tag.tokens.back().kind != TokenKind::kSign) continue;
      const size_t opens = std::string_view("([{").find(first), closes = std::string_view(")]}").find(first);
      if (opens != std::string_view::npos) open += ")]}"[opens];
      if (closes == std::string_view::npos) continue;
      if (!open.ends_with(first)) refuse_jinja(source_.substr(begin));
      open.pop_back();
    }
    // Tags inside of raw text are text. No template of a known model has any.
    if (kind == '%' && !tag.tokens.empty() && tag.tokens[0].text == "raw") refuse_jinja(tag.source);
    tags_.push_back(std::move(tag));
  }

  JinjaToken token(size_t begin) {
    const auto is_name = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || static_cast<unsigned char>(c) >= 0x80;
    };
    const char first = source_[at_];
    if (first == '\'' || first == '"') return literal(begin);
    size_t bytes = 0;
    while (bytes < rest().size() && is_name(rest()[bytes])) ++bytes;
    const TokenKind kind = bytes > 0 ? TokenKind::kName : TokenKind::kSign;
    if (bytes == 0) {
      constexpr std::string_view kPairs[] = {"==", "!=", ">=", "<=", "//", "**"};
      bytes = std::ranges::any_of(kPairs, [&](std::string_view pair) { return rest().starts_with(pair); }) ? 2 : 1;
      if (bytes == 1 && std::string_view("+-/*%~()[]{}<>=.:|,;").find(first) == std::string_view::npos) {
        refuse_jinja(source_.substr(begin));
      }
    }
    at_ += bytes;
    return {.kind = kind, .text = std::string(source_.substr(at_ - bytes, bytes))};
  }

  // A literal with unknown escapes becomes a sign; a part that is not reached may have it.
  JinjaToken literal(size_t begin) {
    const char quote = source_[at_++];
    JinjaToken token{.kind = TokenKind::kLiteral};
    for (; at_ < source_.size() && source_[at_] != quote; ++at_) {
      if (source_[at_] != '\\') {
        token.text += source_[at_];
        continue;
      }
      if (++at_ == source_.size()) break;
      const size_t which = std::string_view("nrt\\'\"").find(source_[at_]);
      if (which == std::string_view::npos) token.kind = TokenKind::kSign;
      token.text += which == std::string_view::npos ? source_[at_] : "\n\r\t\\'\""[which];
    }
    if (at_ == source_.size()) refuse_jinja(source_.substr(begin));
    ++at_;
    return token;
  }

  std::string_view source_;
  size_t at_ = 0;
  std::vector<JinjaTag> tags_;
};

}  // namespace
}  // namespace jinja_tags_file

std::string excerpt(std::string_view text) {
  constexpr size_t kShown = 60;
  std::string out;
  for (const char c : legible(text.substr(0, kShown))) out += c == '\n' ? "\\n" : std::string(1, c);
  return out + (text.size() > kShown ? "..." : "");
}

void refuse_jinja(std::string_view part) { throw DataError(fmt::format("it has \"{}\"", excerpt(part))); }

std::vector<JinjaTag> jinja_tags(std::string_view source) {
  return jinja_tags_file::Lexer(jinja_tags_file::with_line_feeds(source)).tags();
}

}  // namespace mantissa
