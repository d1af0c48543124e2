// UTF-8 and classes of characters. Text inside tools/text is valid UTF-8: encode() replaces invalid bytes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace mantissa {

struct TextChar {
  char32_t code = 0;
  size_t bytes = 0;
};

// The first and the last character of valid UTF-8 that is not empty.
TextChar first_char(std::string_view text);
TextChar last_char(std::string_view text);
void append_char(char32_t code, std::string& text);

// `text`, or, if it is not valid UTF-8, a copy in `storage` with U+FFFD for each longest part that could have begun a
// character. Python's errors="replace" does the same.
std::string_view as_utf8(std::string_view text, std::string& storage);

// Bytes of an incomplete character at the end, which more bytes can complete: 0 to 3.
size_t incomplete_tail(std::string_view text);

// Without the white space that Python's str.strip() takes: the same as \s in its regular expressions.
std::string_view without_leading_space(std::string_view text);
std::string_view without_trailing_space(std::string_view text);

bool is_space(char32_t code);    // Unicode's White_Space
bool is_numeric(char32_t code);  // categories Nd, Nl, No
bool is_word(char32_t code);     // \w of Rust's regular expressions: letters, marks, digits, connectors, joiners

// U+0000 to U+00FF as JSON tokenizers write bytes: printable Latin-1 stands for itself, the other 68 bytes follow in
// order from U+0100.
char32_t char_of_byte(unsigned char byte);
// The bytes that such text stands for; false, with undefined `bytes`, for any other character.
bool bytes_of_chars(std::string_view text, std::string& bytes);

}  // namespace mantissa
