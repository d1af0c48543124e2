#include "tools/text/tokenizer/token_texts.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace mantissa {

void TokenTexts::set(int32_t id, std::string text, bool is_special) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1);
  tokens_[index] = {std::move(text), is_special};
}

const TokenTexts::Token& TokenTexts::at(int32_t id) const {
  require<DataError>(id >= 0 && id < size(), "token {} is not in the tokenizer's vocabulary, whose ids are 0 to {}", id,
                     size() - 1);
  return tokens_[static_cast<size_t>(id)];
}

void TokenTexts::append(int32_t id, Place& place, std::string& out) const {
  std::string_view text = at(id).text;
  if (place.is_first && start_.drops_spaces) {
    std::remove_copy(text.begin(), text.end(), std::back_inserter(out), ' ');
    place.is_first = false;
    return;
  }
  place.is_first = false;
  for (; place.spaces_left > 0 && text.starts_with(' '); --place.spaces_left) text.remove_prefix(1);
  if (!text.empty()) place.spaces_left = 0;
  out += text;
}

}  // namespace mantissa
