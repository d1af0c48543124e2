// Normalizers of a tokenizer.json: they change the text before it is cut into words.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tools/text/tokenizer/regex.h"

namespace mantissa {

// `text`, or what it becomes, in `storage`. Thread safe.
using Normalizer = std::function<std::string_view(std::string_view text, std::string& storage)>;

// A Unicode normal form. Characters that utf8proc's Unicode version does not know stay as they are.
enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
Normalizer unicode_normalizer(NormalForm form);
// Puts `prefix` before text that is not empty.
Normalizer prepend_normalizer(std::string prefix);
// Writes `content` for each match.
Normalizer replace_normalizer(Regex pattern, std::string content);

// Several in a row. `text` must not lie in `storage`.
std::string_view normalized(std::span<const Normalizer> normalizers, std::string_view text, std::string& storage);

// Whether no normal form changes the character or joins it with one before it. True for common scripts only.
bool is_inert(char32_t code);

}  // namespace mantissa
