// Guesses from some of its bytes what a data file holds. Wrong data are valid, too, and look like a bad model.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace mantissa {

// "is compressed by gzip: unpack it first" for the start of a packed file; else empty. Magics are too long for chance.
std::string why_packed(std::span<const std::byte> start);

// UTF-8 text without the byte-order mark that some programs write at its start.
std::string_view without_byte_order_mark(std::string_view text);

// "3 % of its bytes are 0: it is not text, or text in UTF-16" for bytes hardly of any text; else empty.
std::string why_no_text(std::span<const std::byte> sample);

// Whether u16 tokens are rather u32 tokens: every second one, from the second on, is nearly always small, and the
// others are not. The sample starts at a multiple of 4 bytes.
bool looks_like_u32(std::span<const std::byte> sample);

}  // namespace mantissa
