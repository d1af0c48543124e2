// Tokens that are found in the text as a whole, before it is cut into words: special and added ones.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;              // is looked for in normalized text
  bool single_word = false;             // only where no letter, digit or mark touches it
  bool lstrip = false, rstrip = false;  // takes the white space on its left, on its right
};

struct TokenOrText {
  std::optional<int32_t> token{};
  std::string_view text{};  // where it is no token
};

class AddedTokenMatcher {
 public:
  AddedTokenMatcher() = default;
  // Contents must not be empty.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Cuts valid UTF-8 at the tokens: the leftmost first, and the longest of several at the same place. Texts between
  // tokens are not empty. `skips_special`: special tokens are text.
  std::vector<TokenOrText> cut(std::string_view whole, bool skips_special) const;

 private:
  const AddedToken* longest_at(std::string_view rest) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::array<bool, 256> begins_{};  // whether a token begins with the byte
};

}  // namespace mantissa
