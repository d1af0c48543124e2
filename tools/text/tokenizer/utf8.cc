#include "tools/text/tokenizer/utf8.h"

#include <utf8proc.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace mantissa {
namespace {

// The length of the character at the start, or minus the length of the longest valid start of a character.
int checked_length(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const int length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0) return -1;
  // The second byte excludes overlong forms, surrogates and codes beyond U+10FFFF.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < length; ++i, low = 0x80, high = 0xBF) {
    const auto at = static_cast<size_t>(i);
    if (at >= text.size() || byte(at) < low || byte(at) > high) return -i;
  }
  return length;
}

// The length of the longest valid start.
size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (uint64_t eight = 0; at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {  // all ASCII
        at += sizeof eight;
        continue;
      }
    }
    const int length = checked_length(text.substr(at));
    if (length < 0) break;
    at += static_cast<size_t>(length);
  }
  return at;
}

bool is_python_space(char32_t code) { return is_space(code) || (code >= 0x1C && code <= 0x1F); }

constexpr std::array<char32_t, 256> kCharOfByte = [] {
  std::array<char32_t, 256> chars{};
  char32_t next = 0x100;
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool is_itself = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    chars[byte] = is_itself ? static_cast<char32_t>(byte) : next++;
  }
  return chars;
}();
constexpr std::array<int16_t, 0x144> kByteOfChar = [] {
  std::array<int16_t, 0x144> bytes{};
  bytes.fill(-1);
  for (size_t byte = 0; byte < 256; ++byte) bytes[kCharOfByte[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

TextChar first_char(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

TextChar last_char(std::string_view text) {
  size_t begin = text.size() - 1;
  while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return first_char(text.substr(begin));
}

void append_char(char32_t code, std::string& text) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

std::string_view as_utf8(std::string_view text, std::string& storage) {
  size_t valid = valid_prefix(text);
  if (valid == text.size()) return text;
  storage.clear();
  while (true) {
    storage.append(text.substr(0, valid));
    text.remove_prefix(valid);
    if (text.empty()) return storage;
    text.remove_prefix(static_cast<size_t>(-checked_length(text)));
    append_char(0xFFFD, storage);
    valid = valid_prefix(text);
  }
}

size_t incomplete_tail(std::string_view text) {
  for (size_t count = 1; count <= 3 && count <= text.size(); ++count) {
    const std::string_view tail = text.substr(text.size() - count);
    const auto lead = static_cast<unsigned char>(tail[0]);
    if ((lead & 0xC0) == 0x80) continue;  // not the start of a character
    return lead >= 0xC2 && lead < 0xF5 && checked_length(tail) == -static_cast<int>(count) ? count : 0;
  }
  return 0;
}

std::string_view without_leading_space(std::string_view text) {
  while (!text.empty() && is_python_space(first_char(text).code)) text.remove_prefix(first_char(text).bytes);
  return text;
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty() && is_python_space(last_char(text).code)) text.remove_suffix(last_char(text).bytes);
  return text;
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
         code == 0x3000;
}

bool is_numeric(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool is_word(char32_t code) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  // Letters, marks, digits and letters that are numbers; connectors; joiners; letters in circles and squares.
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) || category == UTF8PROC_CATEGORY_PC ||
         code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9) ||
         (code >= 0x1F130 && code <= 0x1F149) || (code >= 0x1F150 && code <= 0x1F169) ||
         (code >= 0x1F170 && code <= 0x1F189);
}

char32_t char_of_byte(unsigned char byte) { return kCharOfByte[byte]; }

bool bytes_of_chars(std::string_view text, std::string& bytes) {
  bytes.clear();
  while (!text.empty()) {
    const TextChar next = first_char(text);
    if (next.code >= kByteOfChar.size() || kByteOfChar[next.code] < 0) return false;
    bytes += static_cast<char>(kByteOfChar[next.code]);
    text.remove_prefix(next.bytes);
  }
  return true;
}

}  // namespace mantissa
