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

// Whether a text starts as a JSON object, or a list of objects.
bool looks_like_json(std::span<const std::byte> start);

// 4 or 8 if u16 tokens are rather parts of such wider tokens: all parts but the first of each are nearly always small,
// and the first are not; else 0. Each piece of the sample starts at a multiple of 8 bytes.
size_t wide_token_bytes(std::span<const std::byte> sample);

}  // namespace mantissa
