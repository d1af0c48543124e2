#include "core/base/wrapped_text.h"

#include <fmt/core.h>

#include <algorithm>

namespace mantissa {
namespace {

// Bytes of the UTF-8 sequence with this first byte; 0: it starts no sequence.
size_t utf8_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

}  // namespace

size_t columns_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string counted(int64_t count, std::string_view noun) {
  const bool takes_es = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : takes_es ? "es" : "s");
}

std::string wrapped(std::string_view text, size_t taken, Paths paths) {
  const auto width = [paths](std::string_view word) {
    const bool is_path = word.find('/') != std::string_view::npos;
    return is_path && paths == Paths::kPassOver ? 1 : columns_of(word);
  };
  std::string result;
  for (size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1, taken = 0) {
    end = text.find('\n', begin);
    const std::string_view given = text.substr(begin, end - begin);
    const size_t indentation = std::min(given.find_first_not_of(' '), given.size()) + 2;
    size_t used = 0;  // columns of the line so far
    for (size_t from = 0, to = 0; to != std::string_view::npos; from = to + 1) {
      to = given.find(' ', from);
      const std::string_view word = given.substr(from, to - from);
      if (used > indentation && taken + used + 1 + width(word) > kTextColumns) {
        result.append("\n").append(indentation, ' ').append(word);
        used = indentation + width(word);
        taken = 0;
      } else {
        result.append(from == 0 ? "" : " ").append(word);
        used += (from == 0 ? 0 : 1) + width(word);
      }
    }
    if (end != std::string_view::npos) result += "\n";
  }
  return result;
}

size_t utf8_length_at(std::string_view text, size_t at) {
  const size_t length = utf8_length(static_cast<unsigned char>(text[at]));
  if (at + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((static_cast<unsigned char>(text[at + k]) & 0xc0) != 0x80) return 0;
  }
  return length;
}

std::string legible(std::string_view text) {
  std::string out;
  for (size_t i = 0, length = 0; i < text.size(); i += std::max<size_t>(1, length)) {
    const auto lead = static_cast<unsigned char>(text[i]);
    length = utf8_length_at(text, i);
    const bool is_shown = lead >= 0x20 ? length > 0 && lead != 0x7f : lead == '\n' || lead == '\t';
    out += is_shown ? std::string(text.substr(i, length)) : fmt::format("\\x{:02x}", lead);
  }
  return out;
}

}  // namespace mantissa
