// Text for terminals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mantissa {

inline constexpr size_t kTextColumns = 120;

size_t columns_of(std::string_view text);  // columns of UTF-8 text: bytes that continue a character do not count

std::string counted(int64_t count, std::string_view noun);  // "1 rank", "2 ranks", "2 batches"

// Breaks lines of more than kTextColumns between words, unless a word is longer than that. The text after a break is
// indented by two more than its line. `taken`: columns of the first line that stand before the text. Messages pass
// paths over: a line that is too long for its path only stays whole.
enum class Paths : uint8_t { kCount, kPassOver };
std::string wrapped(std::string_view text, size_t taken = 0, Paths paths = Paths::kCount);

// Bytes of the whole UTF-8 sequence at this place; 0: there is none.
size_t utf8_length_at(std::string_view text, size_t at);

// The text for grep and terminals: "\x9f" for bytes that are not UTF-8, or controls but tab and line feed.
std::string legible(std::string_view text);

}  // namespace mantissa
