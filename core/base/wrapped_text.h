// Text for terminals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mantissa {

inline constexpr size_t kTextColumns = 120;

// Columns that UTF-8 text takes: bytes that continue a character take none.
size_t columns_of(std::string_view text);

// "1 rank", "2 ranks", "2 batches".
std::string counted(int64_t count, std::string_view noun);

// Breaks lines of more than kTextColumns between words, unless a word is longer than that. The text behind a break is
// indented by two more than its line. `taken`: columns of the first line that stand before the text. Messages pass
// paths over: a line that is too long for its path only stays whole.
enum class Paths : uint8_t { kCount, kPassOver };
std::string wrapped(std::string_view text, size_t taken = 0, Paths paths = Paths::kCount);

}  // namespace mantissa
